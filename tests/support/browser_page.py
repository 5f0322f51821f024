"""A page in headless Chromium, asked about itself at every width."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

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
SECONDS = 240

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


def opened(
    browser: str, folder: Path, text: str, probe: str = PROBE
) -> dict[int, dict[str, Any]]:
    """Open a page in a frame of every width, and return what it says of itself."""
    text = text.replace("<head>", f"<head>{CATCH}", 1)
    text = text.replace("</body>", f"{probe}</body>", 1)
    (folder / "page.html").write_text(text, encoding="utf-8")
    frames = "".join(
        f'<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
        for width in WIDTHS
    )
    wrapper = folder / "wrapper.html"
    wrapper.write_text(WRAPPER.format(count=len(WIDTHS), frames=frames), encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    run = subprocess.run(
        [browser, *FLAGS, profile, "--dump-dom", wrapper.as_uri()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    match = re.search(r'<pre id="probe">(.*?)</pre>', run.stdout, re.DOTALL)
    assert match, f"the page said nothing: {run.stderr[-2000:]}"
    return {found["width"]: found for found in json.loads(html.unescape(match.group(1)))}
