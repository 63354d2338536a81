"""Requests and responses of the search page's server.

The page and other programs use the same interface, which is defined only here. The server checks
requests with these types, builds responses from them, and generates ``/api/v1/openapi.json``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sce_video.datasets.clip_sampling import check_span
from sce_video.options.search import LIKE_WEIGHT, TEXT_WEIGHT, UNLIKE_WEIGHT

#: Prefix of all addresses. It changes if new responses would break existing programs.
PREFIX = "/api/v1"
#: Largest number of results of a search
MAX_RESULTS = 500
#: Largest number of examples, and of counter-examples, in a search
_MAX_EXAMPLES = 100
#: Largest number of rows whose labels a request changes
_MAX_ROWS = 100_000
#: Time from the start of a video in seconds
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Weight of one part of a query
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
#: Request field for the rows whose files are checked
CheckedRows = Annotated[list[int], Body(embed=True, max_length=MAX_RESULTS)]
#: Request field for the rows whose labels change
LabelledRows = Annotated[list[int], Body(max_length=_MAX_ROWS)]
#: Request field for a label; null removes a label
OptionalLabel = Annotated[str | None, Body(max_length=1000)]
#: Request field for a label
Label = Annotated[str, Body(max_length=1000)]
#: Request field for a number
Number = Annotated[float, Body()]
Index = Annotated[int, Body()]


class ApiMessage(BaseModel):
    """Request or response without any unknown fields."""

    model_config = ConfigDict(extra="forbid")


# -- requests ------------------------------------------------------------------------------


class GivenExample(ApiMessage):
    """Example of a query: a video of the index, a moment in such a video, or an uploaded file."""

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
                raise ValueError("a moment needs a video of the index, not an uploaded file")
            check_span("the moment", self.start, self.end)
        return self


class GivenWeights(ApiMessage):
    """Weights of the text, of all examples together, and of all counter-examples together."""

    text: Weight = TEXT_WEIGHT
    like: Weight = LIKE_WEIGHT
    unlike: Weight = UNLIKE_WEIGHT


class FilterRequest(ApiMessage):
    """Filters that a listed video must pass.

    Attributes:
        path: Text that the path must contain, ignoring case.
        folder: First-level sub-folder; null for any.
        label: Number of the label, -1 for videos without a label; null for any.
        where: SQL condition on the columns.
    """

    path: str = Field("", max_length=1000)
    folder: str | None = Field(None, max_length=1000)
    label: int | None = None
    where: str = Field("", max_length=5000)


class SearchRequest(FilterRequest):
    """Query, and filters that the results must pass.

    Attributes:
        like: Examples that results should resemble.
        unlike: Examples that results should not resemble.
        text: Text that results should match, for an index that a video-text model has built.
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
    """Sentence that explains why the request failed."""

    error: str


class LabelsAnswer(ApiMessage):
    """Names of the labels, the label of each row (-1 for none), and the files that store them.

    ``undo`` is the number of changes that can be undone, and ``elsewhere`` the number of labelled
    videos that are not in the index.
    """

    classes: list[str]
    label: list[int]
    undo: int
    elsewhere: int
    file: str
    class_file: str
    segments: int


class LabelledAnswer(LabelsAnswer):
    """Labels after a change, and the paths that a list cannot contain."""

    refused: list[str]


class ColumnAnswer(ApiMessage):
    """Column for conditions: its name, whether it contains numbers, and its values if few."""

    name: str
    number: bool
    values: list[str]


class VideosAnswer(ApiMessage):
    """Content of the index, in lists with an entry for each row.

    ``folder`` is an index into ``folders`` (-1 for none). ``spans`` are start and end in seconds,
    or null for whole videos. ``texts`` states whether the index can be searched by text.
    ``without_columns`` is the number of videos without a line in the CSV file with columns.
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
    """Results of a search, the most similar first.

    ``spans`` are moments in seconds, or null for whole videos. ``more`` states whether there may be
    more results. ``failures`` lists the moments that could not be refined.
    """

    rows: list[int]
    names: list[str]
    similarity: list[float]
    spans: list[tuple[float, float] | None]
    more: bool
    failures: list[str]


class UploadAnswer(ApiMessage):
    """Name by which searches refer to an uploaded file, and whether there is a preview."""

    upload: str
    kind: Literal["video", "image"]
    shown: bool


class ProjectionAnswer(ApiMessage):
    """Coordinates on the map by one method."""

    name: str
    x: list[float]
    y: list[float]


class MapAnswer(ApiMessage):
    """Rows on the map (all, or some at equal steps), and their coordinates by each method."""

    rows: list[int]
    methods: list[ProjectionAnswer]


class SplitAnswer(ApiMessage):
    """Lists for training and testing, and commands that finetune with them or with segments."""

    files: list[str]
    commands: list[str]


class SegmentsAnswer(ApiMessage):
    """Labelled segments of a video: start and end in seconds, and label of each.

    ``classes`` are all labels, with those of whole videos first. ``undo`` is the number of changes
    that can be undone, and ``total`` the number of segments of all videos in ``file``.
    """

    segments: list[tuple[float, float, str]]
    classes: list[str]
    undo: int
    total: int
    file: str
