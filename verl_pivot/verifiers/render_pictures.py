"""Screenshots as PNG -> number of pixels that are drawn, and similarity to a reference picture (SSIM)."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray

from verl_pivot.extras import extra

with extra("web"):
    from PIL import Image, UnidentifiedImageError

_WINDOW = 7
"""Side, in pixels, of the windows in which two pictures are compared."""
_K1, _K2, _RANGE = 0.01, 0.03, 255.0
_SAMPLE_STEP = 16
_MAX_PIXELS = 4096 * 4096
_LUMA = np.array([0.2125, 0.7154, 0.0721])


def read_picture(png: bytes) -> NDArray[np.uint8]:
    """[height, width, 3] Pixels of a picture.

    Raises:
        ValueError: If it is no picture, or has more than 16 million pixels.
    """
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(png), formats=("PNG", "JPEG")) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if image.width * image.height > _MAX_PIXELS:
                raise ValueError(f"has {image.width} x {image.height} pixels; at most {_MAX_PIXELS} are allowed")
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"is not a PNG or JPEG picture: {error}") from error


def num_drawn_pixels(picture: NDArray[np.uint8]) -> int:
    """Number of pixels that differ from the background, the most frequent colour in a sixteenth of the pixels."""
    codes = _codes(picture)
    values, counts = np.unique(codes.ravel()[::_SAMPLE_STEP], return_counts=True)
    return int(np.count_nonzero(codes != values[counts.argmax()]))


def _codes(picture: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """[height, width] Each pixel's colour as one number."""
    red, green, blue = (picture[:, :, channel].astype(np.uint32) for channel in range(3))
    codes: NDArray[np.uint32] = red * np.uint32(1 << 16) + green * np.uint32(1 << 8) + blue
    return codes


def structural_similarity(one: NDArray[np.uint8], two: NDArray[np.uint8]) -> float:
    """Mean SSIM of two pictures of one size, in [-1, 1]; 1 for equal ones.

    Wang, Bovik, Sheikh and Simoncelli (2004), on grey values, over every whole window of 7 x 7 pixels of equal weight
    with unbiased variances, as is the default of scikit-image. It is written here with NumPy alone, since scikit-image
    and its requirements (SciPy, networkx, imageio, tifffile) would be needed for this one function.

    Raises:
        ValueError: If their sizes differ, or a side is shorter than the window.
    """
    if one.shape != two.shape or min(one.shape[:2]) < _WINDOW:
        raise ValueError(
            f"pictures must have equal shapes and sides of at least {_WINDOW} pixels, got {one.shape} and {two.shape}"
        )
    x, y = one @ _LUMA, two @ _LUMA
    size = _WINDOW * _WINDOW
    mean_x, mean_y = _mean(x), _mean(y)
    unbiased = size / (size - 1)
    var_x, var_y = unbiased * (_mean(x * x) - mean_x**2), unbiased * (_mean(y * y) - mean_y**2)
    covariance = unbiased * (_mean(x * y) - mean_x * mean_y)
    c1, c2 = (_K1 * _RANGE) ** 2, (_K2 * _RANGE) ** 2
    similarity = ((2 * mean_x * mean_y + c1) * (2 * covariance + c2)) / (
        (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    )
    return float(similarity.mean())


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of each whole window, by sums of rows and then of columns."""
    for axis in (0, 1):
        sums = np.cumsum(values, axis=axis)
        sums = np.insert(sums, 0, 0.0, axis=axis)
        length = sums.shape[axis]
        values = np.take(sums, range(_WINDOW, length), axis) - np.take(sums, range(length - _WINDOW), axis)
    return values / (_WINDOW * _WINDOW)
