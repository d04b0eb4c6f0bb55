"""Assertions on a page, measurements of its elements -> a sentence for each assertion that does not hold."""

import json
import re
from typing import Annotated, NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from verl_pivot.types import Json
from verl_pivot.validation import Options

TOLERANCE = 1.0
"""Most CSS pixels by which an edge may lie beyond another one."""
_COLOUR_TOLERANCE = 2
"""Largest difference of each channel of two equal colours, on a scale from 0 to 255."""
_HEX = re.compile(r"#(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_COMPUTED = re.compile(r"rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)")
MOST_ELEMENTS = 100
"""Most elements of one selector that are measured; all of them are counted."""
Selector: TypeAlias = Annotated[str, Field(min_length=1, max_length=500)]

_LEAST_OPACITY = 0.1
"""Least opacity of an element, multiplied over its ancestors, with which it counts as visible."""

# Runs in an isolated world of the browser, so that the page's scripts cannot forge what it measures.
_MEASURE = """(() => {
  let untouchable;
  const seen = (element) => {
    let opacity = 1, veiled = false;
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      opacity *= +style.opacity;
      for (const [, share] of style.filter.matchAll(/opacity\\(([^)]*)\\)/g)) opacity *= parseFloat(share);
      veiled ||= style.filter.includes('url(') || style.maskImage !== 'none'
        || style.webkitMaskBoxImageSource !== 'none';
    }
    return {opacity, veiled};
  };
  const most = %d, measure = (element) => {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    const hit = document.elementFromPoint(x, y), {opacity, veiled} = seen(element);
    const holds = (rect) => rect.left <= x && x <= rect.right && rect.top <= y && y <= rect.bottom;
    const parts = Array.from(element.getClientRects());
    const visible = box.width > 0 && box.height > 0 && hit !== null && opacity >= %g
      && (element.contains(hit) || hit.contains(element) && !parts.some(holds))
      && !untouchable.some((each) => !each.contains(element) && !element.contains(each)
        && holds(each.getBoundingClientRect()))
      && element.checkVisibility({visibilityProperty: true});
    return {left: box.left, top: box.top, right: box.right, bottom: box.bottom, visible, veiled,
      text: String(element.innerText || element.value || '').slice(0, 10000),
      colour: style.color, background: style.backgroundColor};
  };
  // A cover through which clicks pass covers too, and a page sees no change of adopted style sheets.
  const sheets = document.adoptedStyleSheets, touchable = new CSSStyleSheet();
  touchable.replaceSync('* { pointer-events: auto !important }');
  document.adoptedStyleSheets = [...sheets, touchable];
  try {
    untouchable = Array.from(document.querySelectorAll('*')).filter(
      (element) => getComputedStyle(element).pointerEvents === 'none');
    return %s.map((selector) => {
      let found;
      try { found = document.querySelectorAll(selector); } catch { return null; }
      return {count: found.length, elements: Array.from(found).slice(0, most).map(measure)};
    });
  } finally { document.adoptedStyleSheets = sheets; }
})()"""
# Whether the page shows a picture instead of text and boxes, by an element, a style or a font of its own. Rules are
# read for other pseudo-elements and the parts of form fields; styles are computed for what has no rule of its own.
# A style sheet of the network, which cannot be read, has not loaded.
_HAS_PICTURES = """(() => {
  const draws = (text) => /paint\\(|image-set\\(|url\\((?!"?#)/i.test(text);
  const holds = (sheet) => {
    let rules;
    try { rules = sheet.cssRules; } catch { return !/^https?:/.test(sheet.href); }
    return Array.from(rules).some(shows);
  };
  const shows = (rule) => {
    if (rule instanceof CSSFontFaceRule || rule instanceof CSSNamespaceRule) return false;
    if (rule instanceof CSSImportRule) return rule.styleSheet !== null && holds(rule.styleSheet);
    if (!rule.cssRules || !rule.cssRules.length) return draws(rule.cssText);
    return draws(rule.style ? rule.style.cssText : '') || Array.from(rule.cssRules).some(shows);
  };
  const fonts = Object.getOwnPropertyDescriptor(Document.prototype, 'fonts').get.call(document);
  return document.querySelector('img,canvas,video,object,embed,iframe,frame,fencedframe,svg image,feImage,'
      + 'input[type=image]') !== null
    || Array.from(fonts).some((font) => font.status === 'loaded')
    || [...document.styleSheets, ...document.adoptedStyleSheets].some(holds)
    || document.getAnimations().some((each) => draws(JSON.stringify(each.effect.getKeyframes())))
    || Array.from(document.querySelectorAll('*')).some((element) =>
      ['', '::before', '::after'].some((part) => {
        const style = getComputedStyle(element, part);
        return [style.backgroundImage, style.content, style.borderImageSource, style.maskImage, style.listStyleImage,
            style.webkitMaskBoxImageSource, style.webkitBoxReflect]
            .some((value) => value && /url\\(|paint\\(/.test(value))
          || [style.filter, style.backdropFilter, style.clipPath].some((value) => value && draws(value));
      }));
})()"""


class Assertion(Options):
    """One claim about the elements that a CSS selector finds on a page; all other keys must hold for the first element.

    Example:
        {"selector": "#buy", "visible": true, "inside": "form", "left_of": "#cancel", "text": "Buy", "count": 1}
    """

    selector: Selector
    visible: bool | None = None
    """Whether the element is visible without scrolling: it has a size and an opacity of at least 0.1 (with that of its
    ancestors), and nothing else covers its middle. An element in a mask or an SVG filter is neither visible nor
    invisible. If false is the only claim, it also holds for an element that is not there."""
    count: Annotated[int, Field(ge=0)] | None = None
    """Number of elements that the selector finds; with 0, no other key may be given."""
    text: str | None = None
    """Text of the element; white space and case do not count."""
    inside: Selector | None = None
    """Selector whose first element must contain the box of the element."""
    left_of: Selector | None = None
    """Selector whose first element must begin at the right edge of the element, or further right."""
    above: Selector | None = None
    """Selector whose first element must begin at the lower edge of the element, or further down."""
    colour: str | None = None
    """Colour of the element's text, as #rrggbb."""
    background: str | None = None
    """The element's own background colour, as #rrggbb."""
    weight: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.claims:
            raise ValueError(f"the assertion on {self.selector!r} makes no claim; give visible, count, text, ...")
        if self.count == 0 and len(self.claims) > 1:
            raise ValueError(f"the assertion on {self.selector!r} has count 0, and then takes no other key")
        for name, value in (("colour", self.colour), ("background", self.background)):
            if value is not None and not _HEX.fullmatch(value):
                raise ValueError(f"{name} must have the form #rrggbb, got {value!r}")
        return self

    @property
    def claims(self) -> list[str]:
        """Names of the keys that claim something."""
        given = self.model_dump(exclude={"selector", "weight"}, exclude_none=True)
        return list(given)

    @property
    def selectors(self) -> list[str]:
        """Every selector that is measured."""
        return [each for each in (self.selector, self.inside, self.left_of, self.above) if each is not None]


class MeasuredElement(NamedTuple):
    """One element, in CSS pixels of the visible part of the page."""

    left: float
    top: float
    right: float
    bottom: float
    visible: bool
    text: str
    colour: str
    background: str
    veiled: bool = False
    """Whether the element or one around it has a mask or an SVG filter, which can hide all of it."""


class SelectorMatches(NamedTuple):
    """The elements of one selector."""

    num_found: int
    elements: tuple[MeasuredElement, ...]
    """The first elements, at most MOST_ELEMENTS."""


Measured: TypeAlias = dict[str, SelectorMatches | None]
"""{selector: its elements}; None for a selector that is not valid CSS."""


def measuring(selectors: list[str], *, allow_pictures: bool) -> str:
    """JavaScript expression that measures the elements of these selectors.

    Its value is null for a page that holds a picture if pictures are not allowed.
    """
    measure = _MEASURE % (MOST_ELEMENTS, _LEAST_OPACITY, json.dumps(selectors))
    return measure if allow_pictures else f"{_HAS_PICTURES} ? null : {measure}"


def read_measured(selectors: list[str], value: Json) -> Measured:
    """Read the value that the JavaScript expression gave."""
    found: Measured = {}
    for selector, each in zip(selectors, value if isinstance(value, list) else [], strict=True):
        if not isinstance(each, dict):
            found[selector] = None
            continue
        elements = each["elements"]
        assert isinstance(elements, list)
        assert isinstance(each["count"], int)
        found[selector] = SelectorMatches(each["count"], tuple(MeasuredElement(**one) for one in elements))  # type: ignore[arg-type]
    return found


def problem_of_assertion(assertion: Assertion, measured: Measured) -> str | None:
    """A sentence that says how an assertion fails; None if it holds."""
    found = measured[assertion.selector]
    if found is None:
        return f"{assertion.selector} is no CSS selector"
    if assertion.count is not None and found.num_found != assertion.count:
        return f"{assertion.selector} is there {found.num_found} times, not {assertion.count}"
    if assertion.count == 0:
        return None
    if not found.elements:
        is_all_that_is_claimed = assertion.claims == ["visible"] and not assertion.visible
        return None if is_all_that_is_claimed else f"there is no {assertion.selector}"
    return _problem_of_element(assertion, found.elements[0], measured)


def _problem_of_element(assertion: Assertion, element: MeasuredElement, measured: Measured) -> str | None:
    name = assertion.selector
    if assertion.visible is not None and element.veiled:
        return f"{name} has a mask or an SVG filter around it, so that it is neither visible nor invisible"
    if assertion.visible is not None and element.visible != assertion.visible:
        return f"{name} is {'not ' if assertion.visible else ''}visible"
    if assertion.text is not None and _words(element.text) != _words(assertion.text):
        return f"{name} has the text {element.text[:80]!r}, not {assertion.text[:80]!r}"
    return _problem_of_colours(assertion, element) or _problem_of_place(assertion, element, measured)


def _problem_of_colours(assertion: Assertion, element: MeasuredElement) -> str | None:
    for key, wanted, computed in (
        ("colour", assertion.colour, element.colour),
        ("background", assertion.background, element.background),
    ):
        if wanted is not None and not _is_colour(computed, wanted):
            return f"{assertion.selector} has the {key} {computed}, not {wanted}"
    return None


def _problem_of_place(assertion: Assertion, element: MeasuredElement, measured: Measured) -> str | None:
    name = assertion.selector
    for key, other in (("inside", assertion.inside), ("left_of", assertion.left_of), ("above", assertion.above)):
        if other is None:
            continue
        found = measured[other]
        if found is None or not found.elements:
            return f"there is no {other}, which {name} should stand {key.replace('_', ' ')}"
        if not _stands(element, key, found.elements[0]):
            return f"{name} does not stand {key.replace('_', ' ')} {other}"
    return None


def _stands(element: MeasuredElement, key: str, other: MeasuredElement) -> bool:
    if min(element.right - element.left, element.bottom - element.top) <= 0.0:
        return False
    if key == "left_of":
        return element.right <= other.left + TOLERANCE
    if key == "above":
        return element.bottom <= other.top + TOLERANCE
    return (
        element.left >= other.left - TOLERANCE
        and element.top >= other.top - TOLERANCE
        and element.right <= other.right + TOLERANCE
        and element.bottom <= other.bottom + TOLERANCE
    )


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _is_colour(computed: str, wanted: str) -> bool:
    found = _COMPUTED.fullmatch(computed)
    if found is None or (found[4] is not None and float(found[4]) < 1.0):
        return False
    digits = wanted[1:] if len(wanted) == 7 else "".join(2 * digit for digit in wanted[1:])
    parts = [int(digits[place : place + 2], 16) for place in (0, 2, 4)]
    return all(abs(int(found[n + 1]) - part) <= _COLOUR_TOLERANCE for n, part in enumerate(parts))
