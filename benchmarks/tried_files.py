"""`coordinator try` on files as people have them: its sentence, its seconds, and what it calls odd.

    python -m benchmarks.tried_files --data-root ../shared/data [FOLDER ...] [--only iris har-table]

Real data that scikit-learn brings and that lies in the data root, divided into devices; then each folder in a FOLDER,
as `benchmarks.real_files_side` writes them, with the data of each device. The target is the one that a person would choose
(`FILES`, or `target.txt` in the folder), else what the command asks for is the answer. A person reads each answer afterwards: `looks`
and `why` of a cell are theirs, and stay while the cell does.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.measuring import Found, children_s, record_options, resumed, show_tables
from benchmarks.own_data import (
    Handwriting,
    Recordings,
    series_rows,
    table_rows,
    write_images,
    write_table,
)
from benchmarks.real_files_side import FILES
from benchmarks.tried import by_age, copied, homes, machines
from covey.extras.trial.tests.homes import QUERY
from scripts.to_npz import cifar10, idx

OUT = Path(__file__).parent / "results" / "tried_files.json"
LONG = 90.0  # seconds of the processor: longer than a newcomer waits
MOST = 400  # seconds of the processor, for which a command may run
DEVICES = 4
TARGET = "target.txt"  # in a folder: the column to predict
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Files:
    """What a user has in a folder."""

    make: Callable[[Path], None]  # writes the data of each device into a folder
    target: str = ""
    query: str = ""  # of the databases in the folder


def real_files(root: Path) -> dict[str, Files]:
    """What scikit-learn and the data root have, as files of devices."""
    writers = root / "mnist_writer.npz"
    return {
        "three machines": Files(machines, "Ausschuss"),
        "diabetes by age": Files(by_age, "progression"),
        "Home Assistant": Files(homes, "temperature", QUERY),
        "iris": Files(partial(_of_sklearn, "iris", ""), "species"),
        "iris by length": Files(partial(_of_sklearn, "iris", "sepal length (cm)"), "species"),
        "iris, length wanted": Files(partial(_of_sklearn, "iris", ""), "petal length (cm)"),
        "iris as it ships": Files(partial(_as_it_ships, "iris.csv")),
        "wine": Files(partial(_of_sklearn, "wine", ""), "class"),
        "wine by alcohol": Files(partial(_of_sklearn, "wine", "alcohol"), "class"),
        "breast cancer": Files(partial(_of_sklearn, "breast_cancer", ""), "class"),
        "breast cancer by radius": Files(
            partial(_of_sklearn, "breast_cancer", "mean radius"), "class"
        ),
        "diabetes by bmi": Files(partial(_of_sklearn, "diabetes", "bmi"), "class"),
        "linnerud": Files(_linnerud, "Pulse"),
        "digits, a column a pixel": Files(partial(_of_sklearn, "digits", ""), "class"),
        "digits, pictures": Files(_digit_pictures),
        "har, a row a window": Files(partial(_people, root, table_rows, ["shake_mg"]), "activity"),
        "har, amounts": Files(partial(_people, root, table_rows, ["shake_mg"]), "shake_mg"),
        "har, recordings": Files(
            partial(_people, root, series_rows, ["recording", "activity"]), "activity"
        ),
        "har, arrays": Files(partial(_arrays, root)),
        "writers, pictures": Files(partial(_writers, writers)),
        "writers, a column a pixel": Files(partial(_writers_as_tables, writers), "digit"),
        "fashion, pictures": Files(partial(_published, idx, root / "fashion-mnist", 60)),
        "cifar-10, pictures": Files(
            partial(_published, cifar10, root / "cifar-10-binary.tar.gz", 40)
        ),
        "fashion as it ships": Files(partial(_linked, root / "fashion-mnist")),
        "cifar-10 as it ships": Files(partial(_linked, root / "cifar-10-binary.tar.gz")),
        "mnist_writer.npz as it is": Files(partial(_linked, writers)),
    }


def folders_in(places: Iterable[Path]) -> dict[str, Files]:
    """The fleets in folders, each with the data of its devices."""
    found: dict[str, Files] = {}
    for place in places:
        for folder in sorted(one for one in place.iterdir() if one.is_dir()):
            wanted = folder / TARGET
            target = FILES[folder.name].target if folder.name in FILES else ""
            target = wanted.read_text("utf-8").strip() if wanted.exists() else target
            found[folder.name] = Files(partial(_all_but_target, folder), target)
    return found


# -- files ---------------------------------------------------------------------------------------------------------


def _all_but_target(source: Path, folder: Path) -> None:
    copied(source, folder)
    (folder / TARGET).unlink(missing_ok=True)


def _linked(source: Path, folder: Path) -> None:
    sources = sorted(source.iterdir()) if source.is_dir() else [source]
    for file in sources:
        (folder / file.name).symlink_to(file.absolute())


def _parts(order: Array) -> list[Array]:
    return np.array_split(order, DEVICES)


def _of_sklearn(name: str, by: str, folder: Path) -> None:
    """A table of scikit-learn, a run of its rows on each device: in the order of a column, or at random."""
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")(**({"scaled": False} if name == "diabetes" else {}))
    names = [str(one) for one in getattr(data, "feature_names", range(data.data.shape[1]))]
    words = getattr(data, "target_names", None)
    labels = data.target if words is None else np.asarray(words)[data.target]
    keys = data.data[:, names.index(by)] if by else np.random.default_rng(1).random(len(labels))
    label = "species" if name == "iris" else "class"
    _tables(folder, [*names, label], data.data, labels, np.argsort(keys, kind="stable"))


def _tables(folder: Path, names: Sequence[str], rows: Array, labels: Array, order: Array) -> None:
    for number, own in enumerate(_parts(order)):
        with (folder / f"device-{number + 1}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            for i in own:
                writer.writerow([*rows[i].tolist(), labels[i]])


def _as_it_ships(name: str, folder: Path) -> None:
    from sklearn import datasets

    place = Path(str(datasets.__file__)).parent / "data" / name
    for number in (1, 2):
        (folder / f"{number}-{name}").write_bytes(place.read_bytes())


def _linnerud(folder: Path) -> None:
    """Twenty people, ten on each of two devices."""
    from sklearn.datasets import load_linnerud

    data = load_linnerud()
    rows = np.column_stack([data.data, data.target]).tolist()
    for number, own in enumerate((rows[:10], rows[10:])):
        with (folder / f"club-{number + 1}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[*data.feature_names, *data.target_names], *own])


def _digit_pictures(folder: Path) -> None:
    from sklearn.datasets import load_digits

    data = load_digits()
    grey = (data.images * 15.9375).astype(np.uint8)
    _pictures(folder, grey, data.target, np.arange(len(grey)))


def _pictures(folder: Path, images: Array, labels: Array, order: Array) -> None:
    """Pictures (n, rows, columns) or (n, rows, columns, 3), a folder for each class on each device."""
    for number, own in enumerate(_parts(order)):
        for i in own.tolist():
            path = folder / f"camera-{number + 1}" / f"class-{labels[i]}" / f"{i:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[i]).save(path)


def _people(root: Path, rows: Any, complete: Sequence[str], folder: Path) -> None:
    """The first people of UCI HAR, a file each."""
    recordings = Recordings.read(root / "har.npz")
    for person in np.unique(recordings.people)[:6].tolist():
        own = list(rows(recordings.of(person)))
        write_table(folder / f"person-{person:02d}.csv", own, complete, holes=0.02)


def _arrays(root: Path, folder: Path) -> None:
    """The windows of people as arrays, as `fleet.data` takes them."""
    with np.load(root / "har.npz") as file:
        for person in range(DEVICES):
            own = file["subject"] == person
            windows = (file["x"][own] * file["scale"]).astype(np.float32)
            np.savez(folder / f"person-{person}.npz", x=windows, y=file["y"][own])


def _writers(source: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        write_images(Path(name), Handwriting.read(source), writers=3)
        for writer in sorted(Path(name).glob("*/*")):
            writer.rename(folder / writer.name)


def _writers_as_tables(source: Path, folder: Path) -> None:
    data = Handwriting.read(source)
    writers, counts = np.unique(data.writers, return_counts=True)
    for writer in writers[counts >= 100][:DEVICES].tolist():
        own = data.writers == writer
        rows = data.images[own].reshape(int(own.sum()), -1)
        with (folder / f"writer-{writer}.csv").open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            out.writerow([*(f"pixel{i}" for i in range(rows.shape[1])), "digit"])
            out.writerows(np.column_stack([rows, data.digits[own]]).tolist())


def _published(
    read: Callable[[Path], Mapping[str, Array]], source: Path, of_class: int, folder: Path
) -> None:
    """The first pictures of each class of a published data set, unequal shares of classes on each device."""
    data = read(source)
    draws = np.random.default_rng(1)
    images, labels = data["x"], data["y"]
    for label in np.unique(labels).tolist():
        own = np.flatnonzero(labels == label)[:of_class]
        shares = draws.dirichlet([0.3] * DEVICES)
        device = draws.choice(DEVICES, size=len(own), p=shares)
        for i, place in zip(own.tolist(), device.tolist(), strict=True):
            path = folder / f"camera-{place + 1}" / f"class-{label}" / f"{i:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = np.moveaxis(images[i], 0, -1)
            Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(path)


# -- a cell --------------------------------------------------------------------------------------------------------


def measured(files: Files) -> dict[str, Any]:
    """The answer of the command for one fleet."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "devices"
        folder.mkdir()
        files.make(folder)
        sources = [str(file) for file in sorted(folder.iterdir())]
        if files.query:
            sources = [f"sqlite:{source}?query={files.query}" for source in sources]
        wanted = ["--target", files.target] if files.target else []
        place = Path(name) / "scenario.yaml"
        command = [sys.executable, "-m", "covey.coordinator.cli", "try", *sources, *wanted]
        command += ["--out", str(place), "--json"]
        begun, before = time.monotonic(), children_s()
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"COLUMNS": "80"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (MOST, MOST + 5)),
        )
        row: dict[str, Any] = {
            "devices": len(sources),
            "target": files.target,
            "cpu_s": round(children_s() - before, 1),
            "clock_s": round(time.monotonic() - begun),
        }
        said = done.stderr.replace(str(folder) + os.sep, "").replace(name + os.sep, "")
        if done.returncode:
            return row | {"refused": said.partition("error: ")[2].strip() or said.strip()[-600:]}
        tried = json.loads(done.stdout)
        kept = ("sentence", "method", "outcome", "worse_for", "ways", "odd")
        scenario = place.read_text("utf-8")
        return row | {key: tried[key] for key in kept} | {"stderr": said, "scenario": scenario}


# -- the table -----------------------------------------------------------------------------------------------------


def page(found: Found) -> str:
    """A line for each fleet."""
    lines = [
        "| files | devices | `coordinator try` | odd | processor, s | a person finds |",
        "| :-- | --: | :-- | --: | --: | :-- |",
    ]
    for name, row in found.items():
        said = row.get("sentence") or f"refused: {row['refused']}"
        said = " ".join(said.split()).replace("|", r"\|")
        odd = len(row["odd"]) if "odd" in row else "–"
        finds = ": ".join(filter(None, (row.get("looks", "–"), row.get("why", ""))))
        seconds = f"{row['cpu_s']:.0f}" + (" (long)" if row["cpu_s"] > LONG else "")
        lines.append(f"| {name} | {row['devices']} | {said} | {odd} | {seconds} | {finds} |")
    return "\n".join(lines)


def counts(found: Mapping[str, Mapping[str, Any]]) -> str:
    """How many answers a person agrees with, and how long they took."""
    looks = [row.get("looks", "not read") for row in found.values()]
    of_each = ", ".join(f"{looks.count(one)} {one}" for one in sorted(set(looks)))
    seconds = sorted(row["cpu_s"] for row in found.values() if "sentence" in row)
    long = [name for name, row in found.items() if row["cpu_s"] > LONG]
    return (
        f"Of {len(found)} kinds of files: {of_each}. An answer took {seconds[len(seconds) // 2]:.0f} s of the processor in the "
        f"median, {seconds[-1]:.0f} s at most; over {LONG:.0f} s: {', '.join(long) or 'none'}."
    )


def main() -> None:
    parser = record_options(__doc__, OUT, (1,))
    parser.add_argument("folders", type=Path, nargs="*", help="folders of fleets")
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="*", help="names of fleets")
    options = parser.parse_args()
    known = real_files(options.data_root) | folders_in(options.folders)
    cells = {name: partial(measured, known[name]) for name in options.only or known}
    found = resumed(options, cells, {}, lambda row: row.get("sentence", row.get("refused")))
    show_tables(options, {"files": page(found)})
    print(counts(found))


if __name__ == "__main__":
    main()
