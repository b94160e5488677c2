"""The Markdown table of what compare_peers.py --json wrote. Files are of whatever version: what is not as expected is named."""
import json
import math


class Unreadable(Exception):
    """A file that is not what it should be."""


def is_figure(value):
    return isinstance(value, (int, float)) and 0 < value < math.inf


def flaw_of_row(row):
    """What of a row is not as rows_of makes it, for markdown; "" if nothing."""
    if not isinstance(row, dict):
        return "is no object"
    kinds = {"model": str, "figure": str, "unit": str, "rounds": dict, "medians": dict}
    for key, kind in kinds.items():
        if not isinstance(row.get(key), kind):
            return f"has no {key}" if key not in row else f"has {row[key]!r} as {key}"
    if not all(isinstance(values, list) for values in row["rounds"].values()):
        return "has rounds that are no lists"
    figures = {f"median of {name}": value for name, value in row["medians"].items()}
    if "ratio" in row:
        figures.update({key: row.get(key) for key in ("ratio", "ratio_min", "ratio_max")})
    if row.get("target") is not None:
        figures["target"] = row["target"]
    return next((f"has {value!r} as {name}" for name, value in figures.items() if not is_figure(value)), "")


def read_rows(name):
    """The rows of a file that --json wrote. Raises Unreadable."""
    try:
        with open(name, encoding="utf-8") as file:
            report = json.load(file)
    except OSError as error:
        raise Unreadable(f"cannot read {name}: {error.strerror}") from error
    except ValueError as error:
        raise Unreadable(f"{name} is no JSON: {error}") from error
    if not isinstance(report, dict) or not isinstance(report.get("rows"), list):
        raise Unreadable(f"{name} has no list of rows: it is not what --json of this script writes")
    for number, row in enumerate(report["rows"], 1):
        if flaw := flaw_of_row(row):
            raise Unreadable(f"{name}: row {number} {flaw}: it is not what --json of this version writes")
    return report["rows"]


def markdown(files):
    """The rows of files that --json wrote as a Markdown table; of a figure that several have, the last one's."""
    rows = {}
    for name in files:
        for row in read_rows(name):
            rows[row["model"], row["figure"]] = row, max(map(len, row["rounds"].values()), default=0)
    if not rows:
        raise Unreadable("there are no rows in " + ", ".join(files))
    lines = ["| model | figure | quire | llama.cpp | OpenVINO | ratio to the faster peer (range) | target | rounds |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for (model, figure), (row, rounds) in rows.items():
        cells = [f"{row['medians'][name]:.4g}" if name in row["medians"] else "-" for name in ("quire", "llama.cpp", "OpenVINO")]
        ratio = "-" if "ratio" not in row else f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
        target = "" if row.get("target") is None else f"{row['target']:g}"
        lines.append(" | ".join([f"| {model}", f"{figure}, {row['unit']}", *cells, ratio, target, f"{rounds} |"]))
    return "\n".join(lines)
