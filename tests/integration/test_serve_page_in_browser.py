"""The page of `smidgen serve`, used as a person would: typed, clicked and looked at."""

from __future__ import annotations

import io
import os
import shutil
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

import smidgen
from smidgen.serving.app import Served, make_app
from smidgen.serving.form import make_form
from smidgen.serving.server import find_address, make_server, open_socket
from smidgen.serving.settings import ServingSettings
from tests.support.devtools import Browser
from tests.support.ready import ready_images, ready_table, ready_texts

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LOOKS = [(width, dark) for width in (1280, 390) for dark in (False, True)]
HOSTILE = "<img src=x onerror=console.error(1)>" + "unbroken_" * 30
# Of text on its ground, as WCAG asks of small letters.
LEAST_CONTRAST = 4.5

CONTRASTS = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = rgb => rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const back = parse(getComputedStyle(e).backgroundColor);
      if (back.length < 4 || back[3] > 0) return back;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 40)]);
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def program():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        message = f"no browser: none of {', '.join(BROWSERS)} is on the path"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture
def browser(program, tmp_path):
    with Browser(program, tmp_path / "profile") as opened:
        yield opened


@contextmanager
def serving(predictor, compute=None, **limits):
    """Serve in a thread; yields the address."""
    settings = ServingSettings(**limits)
    served = Served(
        compute or (lambda rows: predictor(rows).to_dicts()),
        make_form(predictor.note),
        "a folder",
        "0123456789abcdef",
        smidgen.__version__,
        [str(rule) for rule in predictor.rules.by_name().values()],
    )
    opened, ready = open_socket("127.0.0.1", 0), threading.Event()
    server = make_server(make_app(served, settings), settings, on_ready=ready.set)
    thread = threading.Thread(target=server.run, args=([opened],))
    thread.start()
    try:
        assert ready.wait(60)
        yield find_address(opened)
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return smidgen.load(ready_table(tmp_path_factory.mktemp("table")))


def fill(browser, selector, text):
    """Click into a field, empty it and type."""
    browser.evaluate(f"document.querySelector('{selector}').scrollIntoView()")
    x, y = find_middle(browser, selector)
    browser.press(x, y)
    browser.evaluate(f"document.querySelector('{selector}').select()")
    browser.tell(
        "Input.dispatchKeyEvent",
        type="keyDown",
        key="Delete",
        code="Delete",
        windowsVirtualKeyCode=46,
    )
    if text:
        browser.write(text)


def find_middle(browser, selector):
    return browser.evaluate(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])"
        f"(document.querySelector('{selector}').getBoundingClientRect())"
    )


def ask(browser):
    """Click the button and wait for a new answer, or for a refusal."""
    count = "document.querySelectorAll('.answer').length"
    before = browser.evaluate(count)
    browser.evaluate("document.querySelector('#ask').scrollIntoView()")
    browser.press(*find_middle(browser, "#ask"))
    browser.wait_for(
        f"!document.querySelector('#ask').disabled && ({count} > {before} || "
        "document.querySelector('#said').textContent)"
    )


def read(browser, selector):
    return browser.evaluate(f"document.querySelector('{selector}')?.innerText ?? null")


def check_looks(browser):
    """At every width and in both schemes: nothing sticks out, everything can be read."""
    for width, dark in LOOKS:
        browser.look(width=width, dark=dark)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        pale = [each for each in browser.evaluate(CONTRASTS) if each[0] < LEAST_CONTRAST]
        assert not pale
        with Image.open(io.BytesIO(browser.photograph())) as picture:
            shades = np.asarray(picture.convert("L"))
        # The corner is the page's ground; its letters are far from it.
        assert (shades[0, 0] < 60) == dark
        assert int(shades.max()) - int(shades.min()) > 150


def test_a_row_of_a_table(browser, table):
    with serving(table) as address:
        browser.look(width=1280)
        browser.open(address)
        assert read(browser, "#what").startswith("Answers no or yes for a row")
        fill(browser, "#field-0", "2.5")
        fill(browser, "#field-1", "Ulm")
        ask(browser)
        expected = table([{"x": 2.5, "town": "Ulm"}])[0]
        assert expected.answer == "yes"
        assert read(browser, ".answer .head strong") == "yes"
        assert "% sure" in read(browser, ".answer .head span")
        width = browser.evaluate("document.querySelector('.answer .bar i').style.width")
        assert float(width.rstrip("%")) == pytest.approx(
            100 * expected.confidence, abs=0.01
        )
        assert read(browser, ".answer .set").split() == ["Possible", "answer:", "yes"]
        assert read(browser, ".answer .input") == "x 2.5, town Ulm"
        # An empty field is a missing value.
        fill(browser, "#field-0", "")
        ask(browser)
        assert read(browser, ".answer .input") == "town Ulm"
        missing = table([{"x": None, "town": "Ulm"}])[0]
        assert read(browser, ".answer .head strong") == missing.answer
        check_looks(browser)
        # The folder's rules, and nothing from anywhere else.
        assert "hold the true class" in read(browser, "#rules")
        assert {each.startswith(address) for each in browser.list_requests()} == {True}
        assert browser.list_wrongs() == []


def test_it_says_when_it_does_not_know_and_when_a_row_is_strange(browser, table):
    rows = [
        {"x": x / 50, "town": town} for x in range(-150, 150) for town in ("Ulm", "Bonn")
    ]
    answers = list(zip(rows, table(rows), strict=True))
    unsure = next(row for row, answer in answers if answer.abstain)
    strange = next(row for row, answer in answers if answer.strange)
    plain = next(r for r, answer in answers if not (answer.abstain or answer.strange))
    with serving(table) as address:
        browser.look(width=390)
        browser.open(address)
        for row, badge in ((unsure, ".unsure"), (strange, ".strange"), (plain, None)):
            fill(browser, "#field-0", str(row["x"]))
            fill(browser, "#field-1", row["town"])
            ask(browser)
            (answer,) = table([row])
            shown = read(browser, ".answer:first-child")
            assert ("I don’t know." in shown) == answer.abstain
            assert ("Unlike what it has seen." in shown) == answer.strange
            assert badge is None or browser.evaluate(
                f"!!document.querySelector('.answer:first-child .badge{badge}')"
            )
        check_looks(browser)


def test_texts_and_what_is_written_is_never_markup(browser, tmp_path):
    predictor = smidgen.load(ready_texts(tmp_path, pair=True))
    with serving(predictor) as address:
        browser.look(width=390)
        browser.open(address)
        ask(browser)
        assert read(browser, "#said") == "Write something first."
        fill(browser, "#field-0", HOSTILE)
        ask(browser)
        assert read(browser, "#said").startswith("row 1 must have a text in 'body'")
        fill(browser, "#field-1", "a b c")
        ask(browser)
        expected = predictor([(HOSTILE, "a b c")])[0]
        assert read(browser, ".answer .head strong") == expected.answer
        assert HOSTILE[:20] in read(browser, ".answer .input")
        assert browser.evaluate("document.querySelectorAll('main img').length") == 0
        check_looks(browser)
        # The refusal is all that the browser noticed.
        assert ["status of 422" in wrong for wrong in browser.list_wrongs()] == [True]


def test_names_of_classes_are_never_markup(browser, table):
    def compute(rows):
        chances = {HOSTILE: 0.6, **{f"class {n} {HOSTILE}": 0.4 / 14 for n in range(14)}}
        answer = {"answer": HOSTILE, "confidence": 0.6, "probabilities": chances}
        return [{**answer, "set": list(chances), "abstain": True, "strange": True}]

    with serving(table, compute) as address:
        browser.look(width=1280)
        browser.open(address)
        ask(browser)
        assert read(browser, ".answer .head strong") == HOSTILE
        assert browser.evaluate("document.querySelectorAll('main img').length") == 0
        browser.evaluate("document.querySelector('details').open = true")
        assert "and 5 less likely classes" in read(browser, "details")
        check_looks(browser)
        assert browser.list_wrongs() == []


def test_a_picture_is_chosen_and_answered(browser, tmp_path):
    predictor = smidgen.load(ready_images(tmp_path))
    pixels = np.full((8, 8), 40, np.uint8)
    pixels[2:5] += 120
    Image.fromarray(pixels).save(tmp_path / "stripe.png")
    (tmp_path / "none.png").write_bytes(b"no picture")
    with serving(predictor) as address:
        browser.look(width=1280)
        browser.open(address)
        ask(browser)
        assert read(browser, "#said") == "Choose a picture first."
        browser.choose_file("#field-0", tmp_path / "stripe.png")
        browser.wait_for("document.querySelector('.drop img')?.complete")
        ask(browser)
        expected = predictor(pixels[None])[0]
        assert read(browser, ".answer .head strong") == expected.answer == "1"
        assert browser.evaluate("document.querySelector('.input img').naturalWidth") == 8
        check_looks(browser)
        browser.choose_file("#field-0", tmp_path / "none.png")
        browser.wait_for("document.querySelector('.drop img').alt === 'none.png'")
        ask(browser)
        assert "row 1 must be a picture that Pillow can read" in read(browser, "#said")


def test_it_says_when_the_server_is_gone(browser, table):
    with serving(table) as address:
        browser.look(width=390)
        browser.open(address)
    ask(browser)
    assert read(browser, "#said") == "The server did not answer. Is it still running?"
    check_looks(browser)
