"""TensorBoard: event files in the run's folder, written by its own package without TensorFlow or torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from covey.extras.outlets.tracker import Outcome, Settings, TrackedRun

FOLDER = "tensorboard"  # below the run's


class TensorBoard:
    """Scalars by round, and the scenario as a table and as hyperparameters."""

    def __init__(self) -> None:
        self._writer: EventFileWriter | None = None  # open while the run lasts
        self._last_step = 0

    def __repr__(self) -> str:
        return f"<TensorBoard after round {self._last_step}>"

    def begin(self, run: TrackedRun) -> None:
        """Open an event file; a resumed run has one more in the same folder."""
        place = run.folder / FOLDER
        place.mkdir(exist_ok=True)
        self._writer = EventFileWriter(str(place))
        self._write(0, _text("scenario", run.settings))
        # the page HPARAMS lists all runs with their settings next to their figures
        self._write(
            0, hparams_pb(dict(run.settings), trial_id=f"{run.name} {run.folder.resolve()}")
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write scalars."""
        values = [Summary.Value(tag=name, simple_value=figure) for name, figure in figures.items()]
        self._last_step = step
        self._write(step, Summary(value=values))

    def end(self, outcome: Outcome, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        """Write the final figures and close the file."""
        if summary:
            self.log(self._last_step, summary)
        if self._writer is not None:
            self._writer.close()

    def _write(self, step: int, summary: Summary) -> None:
        if self._writer is None:
            return
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()


def _text(tag: str, settings: Settings) -> Summary:
    """Settings as a table of TensorBoard's text plugin, which reads Markdown."""
    lines = ["| key | value |", "|---|---|"]
    for key, value in settings.items():
        text = str(value).replace("|", "\\|")
        lines.append(f"| {key} | {text} |")
    table = "\n".join(lines)
    tensor = TensorProto(
        dtype="DT_STRING",
        string_val=[table.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    value = Summary.Value(tag=tag, tensor=tensor, metadata=SummaryMetadata(plugin_data=plugin))
    return Summary(value=[value])
