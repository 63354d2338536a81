"""Requests of programs and the search page, and their answers.

These classes are the one description of the interface: requests are checked by them, answers are
made by them, and ``/api/v1/openapi.json`` is generated from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sce_video.datasets.clip_sampling import check_span
from sce_video.options.search import LIKE_WEIGHT, TEXT_WEIGHT, UNLIKE_WEIGHT

#: Beginning of all addresses. It changes if a new answer would break programs.
PREFIX = "/api/v1"
#: Results of one search at most.
MAX_RESULTS = 500
#: Examples and counter-examples of one search at most, each.
_MAX_EXAMPLES = 100
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class ApiMessage(BaseModel):
    """A request or an answer, which has no other fields."""

    model_config = ConfigDict(extra="forbid")


# -- requests ------------------------------------------------------------------------------


class GivenExample(ApiMessage):
    """A video of the index by its row or its path, a moment of it, or an uploaded file."""

    row: int | None = None
    path: str | None = Field(None, max_length=10_000)
    upload: str | None = Field(None, max_length=40)
    start: Seconds | None = None
    end: Seconds | None = None

    @model_validator(mode="after")
    def _is_one(self) -> GivenExample:
        if sum(value is not None for value in (self.row, self.path, self.upload)) != 1:
            raise ValueError("give one of row, path and upload")
        if (self.start is None) != (self.end is None):
            raise ValueError("a moment has a start and an end")
        if self.start is not None and self.end is not None:
            if self.upload is not None:
                raise ValueError("a moment is one of a video of the index, not of an upload")
            check_span("the moment", self.start, self.end)
        return self


class GivenWeights(ApiMessage):
    """Weights of the text, of all examples together, and of all counter-examples together."""

    text: Weight = TEXT_WEIGHT
    like: Weight = LIKE_WEIGHT
    unlike: Weight = UNLIKE_WEIGHT


class FilterRequest(ApiMessage):
    """Which videos are listed.

    Attributes:
        path: Only paths with this text, whatever its case.
        folder: Only this sub-folder.
        label: Only this label; -1 only videos without one.
        where: Only videos for which this condition on the columns holds, in SQL.
    """

    path: str = Field("", max_length=1000)
    folder: str | None = Field(None, max_length=1000)
    label: int | None = None
    where: str = Field("", max_length=5000)


class SearchRequest(FilterRequest):
    """A query, and the videos to search.

    Attributes:
        like: What results are like.
        unlike: What they are not like.
        text: What they show; of an index made by a video-text model.
        more_like: A label: its videos are examples, those with other labels counter-examples.
        weights: Of these parts.
        k: Number of results.
        centred: Subtract the mean feature of the index first.
        refined: Embed windows around the best moments again.
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
    """The reason why there is no answer, in one sentence."""

    error: str


class LabelsAnswer(ApiMessage):
    """Classes, the label of every row (-1 for none), and what the page says of the list."""

    classes: list[str]
    label: list[int]
    undo: int
    elsewhere: int
    file: str
    class_file: str
    segments: int


class LabelledAnswer(LabelsAnswer):
    """The labels after a change, and the names that no list can hold."""

    refused: list[str]


class ColumnAnswer(ApiMessage):
    """A column for conditions: whether it holds numbers, and its values if they are few."""

    name: str
    number: bool
    values: list[str]


class VideosAnswer(ApiMessage):
    """The index: what every row is, by its number.

    ``folder`` numbers the sub-folders (-1 for none), ``spans`` are start and end of windows in
    seconds, ``texts`` says whether words can be searched for, ``without_columns`` counts the videos
    that have no line in the file of columns.
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
    """Rows of the index, ascending."""

    rows: list[int]


class ResultsAnswer(ApiMessage):
    """The most similar rows first; ``more`` says whether there may be further ones.

    ``spans`` are the moments in seconds, null of whole videos; ``failures`` name the moments that
    could not be refined.
    """

    rows: list[int]
    names: list[str]
    similarity: list[float]
    spans: list[tuple[float, float] | None]
    more: bool
    failures: list[str]


class UploadAnswer(ApiMessage):
    """The name of a file for later searches, and whether there is a clip or image of it to show."""

    upload: str
    kind: Literal["video", "image"]
    shown: bool


class ProjectionAnswer(ApiMessage):
    """Coordinates of the rows of the map in the plane."""

    name: str
    x: list[float]
    y: list[float]


class MapAnswer(ApiMessage):
    """Rows (all, or some at equal steps) and their coordinates by each method."""

    rows: list[int]
    methods: list[ProjectionAnswer]


class SplitAnswer(ApiMessage):
    """Lists to train and to test, and the commands that use them and the labelled segments."""

    files: list[str]
    commands: list[str]


class SegmentsAnswer(ApiMessage):
    """``segments``: start and end in seconds, and label, of each of a video; ``classes``: all
    labels, those of videos first; ``undo``: number of changes that can be taken back; ``total``: of
    all videos, in ``file``."""

    segments: list[tuple[float, float, str]]
    classes: list[str]
    undo: int
    total: int
    file: str
