"""Images as they come: listed from folders, tables and tar shards, decoded to upright RGB pixels.

Every file is treated as hostile: nothing outside the named folder is followed, and `ImageLimits` are judged
from the header before anything is decoded.  An image that cannot be used keeps its place, with the reason.
"""

from __future__ import annotations

from topline.pipeline.images.decoding import Pixels, decode, read_picture, thumbnail, thumbnail_or_reason
from topline.pipeline.images.demo import write_digits
from topline.pipeline.images.items import ImageItem, ImageListing, Wanted, sorted_names
from topline.pipeline.images.sources import SourceImages, check_images_exist, list_images
