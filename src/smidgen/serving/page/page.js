"use strict";
const { form, about, rules } = JSON.parse(document.getElementById("told").textContent);
const find = id => document.getElementById(id);
const KEPT = 8, LISTED = 10;

function make(kind, content = {}, ...children) {
  const { text, ...rest } = content;
  const element = Object.assign(document.createElement(kind), rest);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

const percent = value => {
  const shown = 100 * value;
  // What is rounded is no certainty.
  if (shown >= 99.95) return "> 99.9 %";
  if (shown < 0.05) return "< 0.1 %";
  return `${shown.toFixed(shown < 10 || shown > 99 ? 1 : 0)} %`;
};

// As many decimals as the width of the interval is worth, and a true minus.
function number(value, width) {
  const decimals = width > 0 ? Math.max(0, Math.min(20, 2 - Math.floor(Math.log10(width)))) : 0;
  const shown = width > 0 ? value.toFixed(decimals) : String(Number(value.toPrecision(5)));
  return shown.replace("-", "−");
}

function bar(value) {
  const fill = make("i");
  fill.style.width = `${Math.max(0, Math.min(1, value)) * 100}%`;
  return make("div", { className: "bar" }, fill);
}

function image(src, alt) {
  const element = make("img", { src, alt });
  // Few pixels stay squares, as the model sees them.
  element.onload = () => element.classList.toggle("few", element.naturalWidth <= 64);
  return element;
}

// What is asked.

function describe() {
  const what = form.classes === null
    ? (form.label === null ? "a number" : `the number ${form.label}`)
    : form.classes.length > 8
      ? `one of ${form.classes.length} classes`
      : form.classes.join(", ").replace(/, ([^,]*)$/, " or $1");
  const given = { text: "a text", table: "a row", images: "a picture" }[form.kind];
  find("what").textContent = `Answers ${what} for ${given}, and says when it is unsure.`;
  const facts = make("p");
  facts.append("Programs ask ", make("code", { text: "POST /predict" }), ". Content of the folder: ",
    make("code", { text: about.digest.slice(0, 12) }), `; smidgen ${about.smidgen}.`);
  find("about").replaceWith(facts);
  if (rules.length) {
    const list = make("ul", {}, ...rules.map(text => make("li", { text })));
    find("rules").append(make("p", { text: "The answers follow these rules:" }), list);
  }
}

let picture = null;

function field(column, index) {
  const id = `field-${index}`;
  const label = make("label", { htmlFor: id, text: column.name });
  let input;
  if (column.kind === "text") {
    input = make("textarea", { id, rows: 4, dir: "auto" });
  } else if (column.kind === "number") {
    input = make("input", { id, type: "number", step: "any", inputMode: "decimal" });
    input.value = column.example;
  } else {
    input = make("input", { id, type: "text", autocomplete: "off" });
    input.value = column.example ?? "";
    input.placeholder = "missing";
    const list = make("datalist", { id: `${id}-values` });
    list.append(...column.values.map(value => make("option", { value })));
    input.setAttribute("list", list.id);
    return make("div", {}, label, input, list);
  }
  if (column.kind === "number") input.placeholder = column.may_lack ? "missing" : "a number";
  return make("div", {}, label, input);
}

function drop() {
  const [channels, height, width] = form.shape;
  const input = make("input", { id: "field-0", type: "file", accept: "image/png,image/jpeg,image/webp" });
  const text = make("span");
  text.append(make("b", { text: "Choose a picture" }), " or drop one here",
    make("br"), make("small", {
      className: "note",
      text: `PNG, JPEG or WebP; scaled to ${width} × ${height}${channels === 1 ? ", shades of grey" : ""}`,
    }));
  const area = make("label", { className: "drop", htmlFor: "field-0" }, input, text);
  const read = file => {
    if (!file) return;
    const reader = new FileReader();
    reader.onload = () => {
      picture = { data: reader.result, name: file.name };
      area.querySelector("img")?.remove();
      area.prepend(image(picture.data, file.name));
    };
    reader.readAsDataURL(file);
  };
  input.onchange = () => read(input.files[0]);
  area.ondragover = event => { event.preventDefault(); area.classList.add("over"); };
  area.ondragleave = () => area.classList.remove("over");
  area.ondrop = event => {
    event.preventDefault();
    area.classList.remove("over");
    read(event.dataTransfer.files[0]);
  };
  return area;
}

function fill() {
  const fields = find("fields");
  if (form.kind === "images") {
    fields.append(drop());
    return;
  }
  fields.append(...form.fields.map(field));
  if (form.kind === "table") fields.classList.add("many");
}

function collect() {
  if (form.kind === "images") {
    return picture === null ? null : { row: picture.data, shown: picture.name, image: picture.data };
  }
  const row = {}, shown = [];
  form.fields.forEach((column, index) => {
    const text = find(`field-${index}`).value;
    const empty = text.trim() === "";
    row[column.name] = empty && column.kind !== "text" ? null
      : column.kind === "number" ? Number(text) : text;
    if (!empty) shown.push(form.kind === "table" ? `${column.name} ${text}` : text);
  });
  const blank = form.kind === "text" && !shown.length;
  return blank ? null : { row, shown: shown.join(form.kind === "table" ? ", " : " · ") };
}

// What is answered.

function card(answer, asked) {
  const shown = make("p", { className: "input", text: asked.shown });
  if (asked.image) shown.replaceChildren(image(asked.image, asked.shown));
  const box = make("article", { className: "answer" }, shown);
  const isNumber = typeof answer.answer === "number";
  const width = answer.high - answer.low;
  const head = make("div", { className: answer.abstain ? "head unsure" : "head" });
  head.append(make("strong", { text: isNumber ? number(answer.answer, width) : answer.answer }));
  if (answer.confidence !== undefined) head.append(make("span", { text: `${percent(answer.confidence)} sure` }));
  if (answer.low !== undefined) head.append(make("span", { text: `${number(answer.low, width)} to ${number(answer.high, width)}` }));
  box.append(head);
  if (answer.confidence !== undefined) box.append(bar(answer.confidence));
  if (answer.abstain) box.append(badge("unsure", "I don’t know.", " Too unsure for the error rate that was asked for: ask a person."));
  if (answer.strange) box.append(badge("strange", "Unlike what it has seen.", " Rows like this were not in training: trust the answer less."));
  if (answer.set !== undefined) box.append(listSet(answer.set));
  if (answer.probabilities !== undefined) box.append(listChances(answer.probabilities));
  return box;
}

const badge = (kind, first, rest) =>
  make("p", { className: `badge ${kind}` }, make("b", { text: first }), rest);

function listSet(names) {
  const line = make("p", { className: "set" });
  if (!names.length) {
    line.textContent = "Possible answers: none is likely enough.";
    return line;
  }
  line.append(names.length === 1 ? "Possible answer: " : "Possible answers: ",
    ...names.slice(0, 30).flatMap(text => [make("em", { text }), " "]));
  if (names.length > 30) line.append(` and ${names.length - 30} more`);
  return line;
}

function listChances(chances) {
  const sorted = Object.entries(chances).sort((a, b) => b[1] - a[1]);
  const grid = make("div", { className: "chances" });
  for (const [name, value] of sorted.slice(0, LISTED)) {
    grid.append(make("span", { text: name }), bar(value), make("span", { text: percent(value) }));
  }
  const more = make("details", { open: sorted.length > 2 && sorted.length <= 5 }, make("summary", { text: "Probabilities" }), grid);
  if (sorted.length > LISTED) more.append(make("p", { className: "note", text: `and ${sorted.length - LISTED} less likely classes` }));
  return more;
}

function say(text, bad = false) {
  find("said").textContent = text;
  find("said").classList.toggle("bad", bad);
}

async function ask(event) {
  event.preventDefault();
  const asked = collect();
  if (asked === null) {
    say(form.kind === "images" ? "Choose a picture first." : "Write something first.", true);
    return;
  }
  find("ask").disabled = true;
  say("");
  try {
    const response = await fetch("predict", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ row: asked.row }),
    });
    const found = await response.json();
    if (!response.ok) {
      say(found.error, true);
      return;
    }
    const answers = find("answers");
    answers.prepend(card(found.answers[0], asked));
    while (answers.children.length > KEPT) answers.lastChild.remove();
  } catch (error) {
    say("The server did not answer. Is it still running?", true);
  } finally {
    find("ask").disabled = false;
  }
}

describe();
fill();
find("form").onsubmit = ask;
addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit();
});
