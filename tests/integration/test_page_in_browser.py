from __future__ import annotations

import html
import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.ramp_record import make_ramp_record

from smidgen.record import Record
from smidgen.report import render

pytestmark = pytest.mark.browser

_BUILDER = runpy.run_path(str(Path(__file__).parents[1] / "report_record.py"))
make_record = _BUILDER["make_record"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,2400",
    "--virtual-time-budget=10000",
)
WIDTHS = (1200, 390)
SMALLEST_TEXT = 9.0

CATCH = """<script>
window.wrong = [];
window.addEventListener("error", e => window.wrong.push(String(e.message || e.type)), true);
console.error = (...words) => window.wrong.push(words.join(" "));
</script>"""

PROBE = """<script>
function probe() {
  const box = e => e.getBoundingClientRect();
  const figures = [...document.querySelectorAll("figure > svg")];
  const apart = (a, b) =>
    a.right <= b.left + 0.5 || b.right <= a.left + 0.5 ||
    a.bottom <= b.top + 2 || b.bottom <= a.top + 2;
  const clashes = [], outside = [];
  let smallest = Infinity;
  for (const figure of figures) {
    const texts = [...figure.querySelectorAll("text")];
    const frame = box(figure), unit = frame.width / figure.viewBox.baseVal.width;
    texts.forEach((text, i) => {
      const a = box(text);
      smallest = Math.min(smallest, unit * parseFloat(getComputedStyle(text).fontSize));
      if (a.left < frame.left - 1 || a.right > frame.right + 1 ||
          a.top < frame.top - 1 || a.bottom > frame.bottom + 1) {
        outside.push(text.textContent);
      }
      for (const other of texts.slice(i + 1)) {
        if (!apart(a, box(other))) clashes.push([text.textContent, other.textContent]);
      }
    });
  }
  return {
    wrong: window.wrong,
    width: window.innerWidth,
    scroll: document.documentElement.scrollWidth,
    sections: [...document.querySelectorAll("section")].map(e => e.id),
    figures: figures.map(e => [box(e).width, box(e).height]),
    clashes, outside, smallest,
    loads: performance.getEntriesByType("resource").map(e => e.name),
    numbers: [...document.querySelectorAll("[data-value]")].map(e =>
      [e.dataset.method, e.dataset.score, e.dataset.value, box(e).width]),
    record: JSON.parse(document.getElementById("record").textContent),
  };
}
window.addEventListener("load", () => parent.postMessage(probe(), "*"));
</script>"""

# Headless Chromium makes no window as narrow as a phone, but a frame may be.
WRAPPER = """<!doctype html><meta charset="utf-8"><body><script>
const found = [];
addEventListener("message", e => {{
  found.push(e.data);
  if (found.length < {count}) return;
  const pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = JSON.stringify(found);
  document.body.append(pre);
}});
</script>{frames}</body>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        message = f"no browser: none of {', '.join(BROWSERS)} is on the path"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


def look(browser: str, folder: Path, record: Record) -> dict[int, dict[str, Any]]:
    """Open the page of a record at every width and ask it about itself."""
    text = render(record)
    text = text.replace("<head>", f"<head>{CATCH}", 1)
    text = text.replace("</body>", f"{PROBE}</body>", 1)
    (folder / "page.html").write_text(text, encoding="utf-8")
    frames = "".join(
        f'<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
        for width in WIDTHS
    )
    wrapper = folder / "wrapper.html"
    wrapper.write_text(WRAPPER.format(count=len(WIDTHS), frames=frames), encoding="utf-8")
    run = subprocess.run(
        [
            browser,
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            "--dump-dom",
            wrapper.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    match = re.search(r'<pre id="probe">(.*?)</pre>', run.stdout, re.DOTALL)
    assert match, f"the page said nothing: {run.stderr[-2000:]}"
    return {found["width"]: found for found in json.loads(html.unescape(match.group(1)))}


@pytest.fixture(scope="module")
def record() -> Record:
    return make_record()


@pytest.fixture(scope="module")
def seen(
    browser: str, record: Record, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    return look(browser, tmp_path_factory.mktemp("page"), record)


@pytest.mark.parametrize("width", WIDTHS)
def test_page_opens_without_errors_or_loads(
    seen: dict[int, dict[str, Any]], width: int
) -> None:
    assert seen[width]["wrong"] == []
    assert seen[width]["loads"] == []
    assert len(seen[width]["sections"]) == 8


@pytest.mark.parametrize("width", WIDTHS)
def test_page_does_not_scroll_sideways(seen: dict[int, dict[str, Any]], width: int) -> None:
    assert seen[width]["scroll"] <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_is_seen_and_fits(
    seen: dict[int, dict[str, Any]], record: Record, width: int
) -> None:
    figures = seen[width]["figures"]
    maps = len(record.results["subset"]["maps"])
    panels = len(record.results["methods"]) + len(_BUILDER["SETS"])
    assert len(figures) == maps + panels + 3
    assert all(0 < w <= width and h > 0 for w, h in figures)


@pytest.mark.parametrize("width", WIDTHS)
def test_text_of_figures_is_legible(seen: dict[int, dict[str, Any]], width: int) -> None:
    assert seen[width]["clashes"] == []
    assert seen[width]["outside"] == []
    assert seen[width]["smallest"] >= SMALLEST_TEXT


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_are_those_of_the_record(
    seen: dict[int, dict[str, Any]], record: Record, width: int
) -> None:
    assert seen[width]["record"] == json.loads(record.to_json())
    numbers = {(m, s): float(v) for m, s, v, _ in seen[width]["numbers"]}
    assert all(shown > 0 for *_, shown in seen[width]["numbers"])
    for method in record.results["methods"]:
        for score, one in method["scores"].items():
            assert numbers[method["name"], score] == one["value"]
            assert numbers[method["name"], f"{score}.low"] == one["low"]
            assert numbers[method["name"], f"{score}.high"] == one["high"]
        for score in ("floats", "relative_seconds"):
            assert numbers[method["name"], score] == method[score]


def test_long_and_hostile_names_do_not_break_the_page(
    browser: str, record: Record, tmp_path: Path
) -> None:
    long = "<img src=x onerror=console.error(1)>" + "unbroken_" * 30
    methods = [
        {
            **method,
            "label": f"{method['label']} {long}",
            "detection": {long: {"value": 0.4, "low": 0.3, "high": 0.5}},
        }
        for method in record.results["methods"]
    ]
    one = {**record.results["subset"]["maps"][0], "name": long}
    changed = make_record(
        methods=methods, subset={"maps": [one]}, data={long: 1}, precision_curve=None
    )
    changed.config["title"] = long  # type: ignore[index]
    for width, found in look(browser, tmp_path, changed).items():
        assert found["wrong"] == []
        assert found["loads"] == []
        assert found["scroll"] <= width


@pytest.fixture(scope="module")
def ramp_seen(
    browser: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    return look(browser, tmp_path_factory.mktemp("ramp"), make_ramp_record())


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_ramping_study_is_whole(
    ramp_seen: dict[int, dict[str, Any]], width: int
) -> None:
    found, record = ramp_seen[width], make_ramp_record()
    assert found["wrong"] == []
    assert found["loads"] == []
    assert found["scroll"] <= width
    assert len(found["sections"]) == 8
    # Four of scores against floats, two of norms, one of risk and coverage.
    assert len(found["figures"]) == len(record.results["methods"]) + 7
    assert all(0 < w <= width and h > 0 for w, h in found["figures"])
    assert found["record"] == json.loads(record.to_json())


@pytest.mark.parametrize("width", WIDTHS)
def test_names_in_figures_of_a_ramping_study_are_apart(
    ramp_seen: dict[int, dict[str, Any]], width: int
) -> None:
    assert ramp_seen[width]["clashes"] == []
    assert ramp_seen[width]["outside"] == []
    assert ramp_seen[width]["smallest"] >= SMALLEST_TEXT
