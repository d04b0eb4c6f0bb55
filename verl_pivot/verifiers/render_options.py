"""RenderOptions: the validated requirements of a row for a page."""

import base64
import binascii
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.judge import JudgeOptions
from verl_pivot.verifiers.render_assertions import Assertion
from verl_pivot.verifiers.render_page import RenderRequest
from verl_pivot.verifiers.render_pictures import read_picture


class RenderWeights(Options):
    """Weights of the parts in the mean score; a weight counts only if the row has the part."""

    assertions: Annotated[float, Field(ge=0.0, le=1000.0)] = 1.0
    """Weight of the share of assertions that hold."""
    likeness: Annotated[float, Field(ge=0.0, le=1000.0)] = 1.0
    """Weight of the likeness to the reference picture."""
    judge: Annotated[float, Field(ge=0.0, le=1000.0)] = 1.0
    """Weight of the judge's grade."""


class RenderOptions(Options):
    """Options of the verifier `render`, and of the tool `look`. A row gives at least one of the three parts."""

    argument: ToolArgument | None = None
    """Argument that holds the HTML, as "tool.argument"; None for the last code block of the text."""
    assertions: Annotated[tuple[Assertion, ...], Field(max_length=200)] = ()
    """Claims about the page at the last screenshot; the weighted share of those that hold is this part's score."""
    reference: str = ""
    """Picture that the last screenshot should resemble, as base64 of a PNG or JPEG of `width` x `height`. The SSIM of
    the two pictures, at least 0, is this part's score."""
    judge: JudgeOptions | None = None
    """Judge of kind `rubric` that sees the screenshots and grades them by its `criterion`."""
    weights: RenderWeights = RenderWeights()
    """Weights of the parts."""
    width: Annotated[int, Field(ge=16, le=2560)] = 1280
    """Width of the visible part of the page, in CSS pixels."""
    height: Annotated[int, Field(ge=16, le=2560)] = 720
    """Height of the visible part of the page, in CSS pixels."""
    seconds: Annotated[tuple[Annotated[float, Field(ge=0.0, le=30.0)], ...], Field(min_length=1, max_length=5)] = (
        0.0,
        1.0,
        2.0,
    )
    """Seconds after loading at which screenshots are taken, ascending (ReLook: at load, after one and two seconds)."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=120.0)] = 15.0
    """Time limit in seconds for loading, screenshots and measuring, in addition to the last of `seconds`."""
    allow_pictures: bool = True
    """Whether a page may show pictures (img, canvas, video, frames, url() in a style) and have shadow trees or fonts of
    its own, which can draw some; else it is refused."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = {"assertions": self.assertions, "likeness": self.reference, "judge": self.judge}
        given = [name for name, part in parts.items() if part]
        if not given:
            raise ValueError("give assertions, a reference or a judge; that a page is valid does not make it right")
        idle = [name for name in self.weights.model_fields_set if name not in given]
        if idle:
            raise ValueError(f"the weight of {idle[0]} has no effect, since the row does not give that part")
        if not any(getattr(self.weights, name) for name in given):
            raise ValueError("all weights are 0; set one of them above 0")
        if self.judge is not None and self.judge.kind != "rubric":
            raise ValueError(f"the judge of a page must have kind 'rubric', got {self.judge.kind!r}")
        if list(self.seconds) != sorted(set(self.seconds)):
            raise ValueError(f"seconds must ascend, got {list(self.seconds)}")
        if self.reference:
            height, width = self.picture().shape[:2]
            if (width, height) != (self.width, self.height):
                raise ValueError(f"the reference has {width} x {height} pixels, not {self.width} x {self.height}")
        return self

    def picture(self) -> NDArray[np.uint8]:
        """[height, width, 3] The reference picture.

        Raises:
            ValueError: If the reference is no base64, or no picture.
        """
        try:
            return read_picture(base64.b64decode(self.reference, validate=True))
        except binascii.Error as error:
            raise ValueError(f"the reference is not valid base64: {error}") from error
        except ValueError as error:
            raise ValueError(f"the reference {error}") from error

    def request(self) -> RenderRequest:
        """The request to the browser."""
        selectors = dict.fromkeys(selector for each in self.assertions for selector in each.selectors)
        return RenderRequest(
            width=self.width,
            height=self.height,
            seconds=self.seconds,
            selectors=tuple(selectors),
            wall_seconds=self.wall_seconds,
            allow_pictures=self.allow_pictures,
        )
