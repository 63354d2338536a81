"""Requests of programs and of the search page, and the responses to them.

These classes are the only definition of the interface. Requests are checked by them, responses are
built from them, and ``/api/v1/openapi.json`` is generated from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sce_video.datasets.clip_sampling import check_span
from sce_video.options.search import LIKE_WEIGHT, TEXT_WEIGHT, UNLIKE_WEIGHT

#: Prefix of all addresses. It changes if a new answer would break programs.
PREFIX = "/api/v1"
#: Largest number of results of one search
MAX_RESULTS = 500
#: Largest number of examples, and of counter-examples, in one search
_MAX_EXAMPLES = 100
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class ApiMessage(BaseModel):
    """Request or answer that contains no other fields."""

    model_config = ConfigDict(extra="forbid")


# -- requests ------------------------------------------------------------------------------


class GivenExample(ApiMessage):
    """Example: a video of the index by row or path, a moment of it, or an uploaded file."""

    row: int | None = None
    path: str | None = Field(None, max_length=10_000)
    upload: str | None = Field(None, max_length=40)
    start: Seconds | None = None
    end: Seconds | None = None

    @model_validator(mode="after")
    def _is_one(self) -> GivenExample:
        if sum(value is not None for value in (self.row, self.path, self.upload)) != 1:
            raise ValueError("give exactly one of row, path and upload")
        if (self.start is None) != (self.end is None):
            raise ValueError("a moment needs a start and an end")
        if self.start is not None and self.end is not None:
            if self.upload is not None:
                raise ValueError("a moment must belong to a video of the index, not to an upload")
            check_span("the moment", self.start, self.end)
        return self


class GivenWeights(ApiMessage):
    """Weights of the text, of all examples together, and of all counter-examples together."""

    text: Weight = TEXT_WEIGHT
    like: Weight = LIKE_WEIGHT
    unlike: Weight = UNLIKE_WEIGHT


class FilterRequest(ApiMessage):
    """Selection of the videos to list.

    Attributes:
        path: Text that paths must contain, ignoring case.
        folder: Sub-folder of the videos.
        label: Label of the videos; -1 for videos without a label.
        where: SQL condition that the columns of the videos must meet.
    """

    path: str = Field("", max_length=1000)
    folder: str | None = Field(None, max_length=1000)
    label: int | None = None
    where: str = Field("", max_length=5000)


class SearchRequest(FilterRequest):
    """Query, and selection of the videos to search.

    Attributes:
        like: Examples that results should resemble.
        unlike: Examples that results should not resemble.
        text: Text that results should match, for an index made by a video-text model.
        more_like: Label whose videos are examples. Videos with other labels are counter-examples.
        weights: Weights of text, examples and counter-examples.
        k: Number of results.
        centred: Whether to subtract the mean feature of the index first.
        refined: Whether to embed more windows around the best moments.
    """

    like: list[GivenExample] = Field([], max_length=_MAX_EXAMPLES)
    unlike: list[GivenExample] = Field([], max_length=_MAX_EXAMPLES)
    text: str | None = Field(None, max_length=1000)
    more_like: str | None = Field(None, max_length=200)
    weights: GivenWeights = GivenWeights()
    k: int = Field(24, ge=1, le=MAX_RESULTS)
    centred: bool = False
    refined: bool = False


# -- answers -------------------------------------------------------------------------------


class ErrorAnswer(ApiMessage):
    """Reason why there is no answer, in one sentence."""

    error: str


class LabelsAnswer(ApiMessage):
    """Classes, label of every row (-1 for none), and a text about the list for the page."""

    classes: list[str]
    label: list[int]
    undo: int
    elsewhere: int
    file: str
    class_file: str
    segments: int


class LabelledAnswer(LabelsAnswer):
    """Labels after a change, and the names of videos that a list cannot contain."""

    refused: list[str]


class ColumnAnswer(ApiMessage):
    """Column for conditions, with whether it contains numbers, and its values if they are few."""

    name: str
    number: bool
    values: list[str]


class VideosAnswer(ApiMessage):
    """Content of the index, with one entry per row.

    ``folder`` numbers the sub-folders (-1 for none). ``spans`` are start and end of windows in
    seconds. ``texts`` states whether text queries are possible. ``without_columns`` counts the
    videos without a line in the file of columns.
    """

    root: str
    names: list[str]
    folders: list[str]
    folder: list[int]
    spans: list[tuple[float, float]] | None
    refinable: bool
    texts: bool
    columns: list[ColumnAnswer]
    without_columns: int
    failures: int
    problem: str
    update: str
    labels: LabelsAnswer


class RowsAnswer(ApiMessage):
    """Rows of the index in ascending order."""

    rows: list[int]


class ResultsAnswer(ApiMessage):
    """Results, the most similar row first. ``more`` states whether there may be more results.

    ``spans`` are the moments in seconds, null for whole videos. ``failures`` lists the moments that
    could not be refined.
    """

    rows: list[int]
    names: list[str]
    similarity: list[float]
    spans: list[tuple[float, float] | None]
    more: bool
    failures: list[str]


class UploadAnswer(ApiMessage):
    """Name of an uploaded file for later searches, and whether a preview of it is available."""

    upload: str
    kind: Literal["video", "image"]
    shown: bool


class ProjectionAnswer(ApiMessage):
    """Coordinates of the map's rows in the plane."""

    name: str
    x: list[float]
    y: list[float]


class MapAnswer(ApiMessage):
    """Rows on the map (all, or some at equal steps), and their coordinates by each method."""

    rows: list[int]
    methods: list[ProjectionAnswer]


class SplitAnswer(ApiMessage):
    """Lists for training and testing, and commands that use them and the labelled segments."""

    files: list[str]
    commands: list[str]


class SegmentsAnswer(ApiMessage):
    """Labelled segments of a video.

    ``segments`` contains start and end in seconds and the label of each segment. ``classes`` are
    all labels, with labels of videos first. ``undo`` is the number of changes that can be undone,
    and ``total`` is the number of segments of all videos in ``file``.
    """

    segments: list[tuple[float, float, str]]
    classes: list[str]
    undo: int
    total: int
    file: str
