"""The tables of docs/performance.md and docs/serve.md, from the records in bench/records/.

A bench that has no record yet, or one from before its results had their present form, gets a
sentence instead of a table. Targets are those that the bench wrote into its record, and a
miss is said in the same words as a success.
"""

from __future__ import annotations

from docs.build import limit_tables, serve_tables
from docs.build.measured import (
    DASH,
    judge,
    judge_cells,
    make_rows,
    name_threads,
    of_bench,
    write_megabytes,
    write_ratio,
    write_target,
)

from smidgen.report.formats import MINUS, format_count, format_nll, format_signed
from smidgen.runtime.record import Record

_MEASURES = {
    "fit": "fit time",
    "predict": "predict time",
    "fit bytes": "fit memory",
    "predict bytes": "predict memory",
}
_CLASSES = " classes / forward and backward"
_CALIBRATION = ", CPU seconds"


@of_bench("classes")
def classes_table(record: Record) -> str:
    """One thousand classes beside a training step, and calibrating ten."""
    config, results = record.config, record.results
    (many,) = (key for key in results if key.endswith(_CLASSES))
    (few,) = (key for key in results if key.endswith(_CALIBRATION))
    targets = config["targets"]
    rows = (
        [
            name,
            write_ratio(value),
            *judge_cells(value, targets[name.partition(",")[0]], write_target),
        ]
        for name, value in results[many].items()
    )
    seconds, target = results[few], targets["calibrate, CPU seconds"]
    return "\n".join(
        [
            f"{config['model']}, {many.removesuffix(_CLASSES)} classes, {config['batch']} × "
            f"{config['tokens']} tokens, defaults, {name_threads(config)}; over a forward and a "
            "backward pass of its loss, weight gradients included "
            "(`python -m bench classes`):",
            "",
            *make_rows(("", "time ÷ passes", "target", "verdict"), rows),
            "",
            f"{few.removesuffix(_CALIBRATION)} ({config['ten classes']}): to calibrate takes "
            f"{seconds['calibrate']:g} seconds of CPU, to predict the same rows "
            f"{seconds['predict']:g}. Target: at most {target:g} seconds to calibrate: "
            f"{judge(seconds['calibrate'], target)}.",
        ]
    )


@of_bench("lora", "floats", "time / passes", "test NLL", "Llama-2-7B")
def lora_table(record: Record) -> str:
    """A posterior over LoRA's adapters beside a training step, and one on paper."""
    config, results = record.config, record.results
    targets, times, nll = config["targets"], results["time / passes"], results["test NLL"]
    # Plus zero: a difference that is rounded to nothing has no sign.
    floats, gap = results["floats"], results["test NLL, default − full"] + 0.0
    rows = [
        [
            "floats",
            *(format_count(floats[way]) for way in ("default", "full")),
            *judge_cells(floats["default"], targets["floats"], format_count),
        ]
    ]
    for work in ("fit", "predict"):
        own = [times[f"{work}, {way}"] for way in ("default", "full")]
        target = targets[f"{work} / passes"]
        rows.append(
            [
                f"{work} ÷ passes",
                *map(write_ratio, own),
                *judge_cells(own[0], target, write_target),
            ]
        )
    key = "test NLL, default − full"
    rows.append(
        ["test NLL", *(format_nll(nll[w]) for w in ("default", "full")), DASH, DASH]
    )
    apart = judge_cells(gap, targets[key], format_nll, amount=format_nll)
    rows.append([key, format_signed(gap, 5), "", *apart])
    llama = results["Llama-2-7B"]
    stored, most = llama["stored bytes"], targets["Llama-2-7B, stored bytes"]
    return "\n".join(
        [
            f"{config['model']}, {config['adapters']}: {format_count(config['weights'])} "
            f"weights; {config['data']}, factors of {config['rows']['fitted']} rows; "
            f"{name_threads(config)}. Passes are {config['passes']} (`python -m bench lora`):",
            "",
            *make_rows(("", "default rank", "full factors", "target", "verdict"), rows),
            "",
            f"Test NLL of the point estimate is {format_nll(nll['MAP'])} at an accuracy of "
            f"{results['test accuracy']:.3f}. The same adapters on Llama-2-7B are planned, "
            f"not run: {format_count(llama['weights'])} weights, {write_megabytes(stored)} MB "
            f"stored (target ≤ {write_megabytes(most)} MB: {judge(stored, most)}), peaks of "
            f"{write_megabytes(llama['fit peak bytes'])} MB to fit and "
            f"{write_megabytes(llama['predict peak bytes'])} MB to predict.",
        ]
    )


@of_bench("tokens", "predict / forward, window 256")
def tokens_table(record: Record) -> str:
    """Next-token uncertainty beside the model's own forward pass."""
    config = record.config
    rows = (
        [name, write_ratio(value), *judge_cells(value, config["target"], write_target)]
        for name, value in record.results.items()
    )
    return "\n".join(
        [
            f"{config['model']}, {config['document']}; stochastic is {config['stochastic']}, the "
            f"{config['top']} likeliest tokens are followed; {name_threads(config)}. Forward is "
            f"{config['forward']} (`python -m bench tokens`):",
            "",
            *make_rows(("", "ratio", "target", "verdict"), rows),
        ]
    )


@of_bench("startup", "import smidgen")
def startup_table(record: Record) -> str:
    """Seconds before anything can be done."""
    targets = record.config["targets"]
    rows = (
        [
            f"`{name}`",
            f"{value:.3f} s",
            *judge_cells(value, targets.get(name), "{:g} s".format),
        ]
        for name, value in record.results.items()
    )
    return "\n".join(
        [
            f"In new processes; {record.config['seconds']} (`python -m bench startup`):",
            "",
            *make_rows(("", "seconds", "target", "verdict"), rows),
        ]
    )


_FASTER = "predict / forward"
_LATER = "predict − forward, ms"


@of_bench("warm", "one text", "one image")
def warm_table(record: Record) -> str:
    """A prediction beside the forward pass of the same inputs."""
    config, rows = record.config, []
    for case, ways in record.results.items():
        for way, found in ways.items():
            cells = [f"{case}, {way}"]
            cells += [f"{found[key]:.2f}" for key in ("forward, ms", "predict, ms")]
            cells += [write_ratio(found[_FASTER]), format_signed(found[_LATER], 2)]
            targets = config["targets"].get(case, {}).get(way, {})
            if _LATER in targets:
                judged = judge_cells(
                    found[_LATER],
                    targets[_LATER],
                    "forward + {:g} ms".format,
                    amount="{:.2f} ms".format,
                )
            else:
                judged = judge_cells(found[_FASTER], targets.get(_FASTER), write_target)
            rows.append([*cells, *judged])
    models = (
        f"- {case}: {model}; {config['rounds'][case]} rounds"
        for case, model in config["models"].items()
    )
    return "\n".join(
        [
            f"Medians over rounds, {name_threads(config)} (`python -m bench warm`):",
            "",
            *models,
            "",
            *make_rows(
                ("", "forward, ms", "predict, ms", "÷", MINUS, "target", "verdict"), rows
            ),
        ]
    )


@of_bench("peers")
def peers_table(record: Record) -> str:
    """The benchmark against laplace-torch."""
    config = record.config
    rows = (
        [f"{model}, {name}", *(f"{ratios[key]:.3g}×" for key in _MEASURES)]
        for model, found in record.results.items()
        for name, ratios in found["peer_over_smidgen"].items()
    )
    lines = [
        f"{config['peer']} ÷ smidgen, KFAC of all affine layers, {name_threads(config)}, each in "
        "a process of its own (`python -m bench peers`):",
        "",
        *make_rows(("", *_MEASURES.values()), rows),
        "",
    ]
    judged = []
    for key, target in config["targets of peer_over_smidgen"].items():
        measure, _, which = key.partition(", ")
        # A target is of the first model unless it names another.
        model = next((m for m in record.results if which.startswith(m)), None)
        pair = which.removeprefix(f"{model}, ") if model else which
        model = model or next(iter(record.results))
        value = record.results[model]["peer_over_smidgen"][f"KFAC, {pair}"][measure]
        label = f"{model}, {pair}: {_MEASURES[measure]}"
        cells = judge_cells(value, target, write_target, least=True)
        judged.append([label, f"{value:.3g}×", *cells])
    return "\n".join(
        lines + make_rows(("", "laplace-torch ÷ smidgen", "target", "verdict"), judged)
    )


@of_bench("ramp")
def ramping_table(record: Record) -> str:
    """The benchmark of the ramping study."""
    rows = ([name, str(value)] for name, value in record.results.items())
    return "\n".join(make_rows(("", ""), rows))


TABLES = {
    "limit": limit_tables.limit_table,
    "limit-memory": limit_tables.memory_table,
    "limit-floats": limit_tables.floats_table,
    "percent": limit_tables.percent_table,
    "growth": limit_tables.growth_table,
    "classes": classes_table,
    "lora": lora_table,
    "startup": startup_table,
    "tokens": tokens_table,
    "warm": warm_table,
    "peers": peers_table,
    "ramping": ramping_table,
    "serve": serve_tables.serve_table,
}
