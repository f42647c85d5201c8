{
  /* Labels that a person gives: kept in this browser, downloaded as a table that Topline reads. */
  const desk = document.getElementById("desk"), key = desk.dataset.state, names = JSON.parse(desk.dataset.names);
  const cards = [...document.querySelectorAll(".card[data-id]")];
  const read = () => { try { return JSON.parse(localStorage.getItem(key)) || []; } catch { return []; } };
  /* Steps in their order, [id, label] each; the last one of a row counts, and "" leaves it out. */
  let steps = read(), at = 0;
  const labels = () => new Map(steps);
  const make = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  /* As Python's `harmless` of cells: no spreadsheet runs a class of this name, and no terminal obeys it. */
  const harmless = (text) => {
    const shown = text.replace(/\\(u00[0-9a-f]{2})/g, "\\u005c$1").replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
    return /^[=+\-@\t\r\n]/.test(shown) && !/^[+-]?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(shown) ? `'${shown}` : shown;
  };
  const table = () => [`${desk.dataset.key},label`, ...[...labels()].map(([id, label]) => [id, harmless(label)].map(quoted).join(","))].join("\r\n") + "\r\n";
  const words = (card, label) =>
    label === undefined ? "" : label === "" ? "left out" : label === card.dataset.label ? "kept" : `now ${label}`;

  const decide = (label) => {
    steps.push([cards[at].dataset.id, label]);
    save();
    const open = labels(), next = [...cards.keys()].map((i) => (at + 1 + i) % cards.length).find((i) => !open.has(cards[i].dataset.id));
    show(next ?? at);
  };
  const undo = () => {
    const last = steps.pop();
    save();
    show(last ? Math.max(cards.findIndex((card) => card.dataset.id === last[0]), 0) : at);
  };
  const save = () => { try { localStorage.setItem(key, JSON.stringify(steps)); } catch { /* a browser that keeps nothing */ } };
  const move = (by) => show((at + by + cards.length) % cards.length);

  const picture = make("div", {className: "large"}), facts = make("div", {className: "facts-of-card"});
  const said = make("p", {className: "sub"}), choice = make("input", {type: "text", id: "choice", autocomplete: "off", placeholder: "class, then Enter"});
  said.setAttribute("role", "status");
  choice.setAttribute("list", "names");
  choice.setAttribute("aria-label", "Another class");
  const list = make("datalist", {id: "names"}, ...names.map((value) => make("option", {value})));
  const button = (letter, text, work) => {
    const made = make("button", {type: "button", onclick: work}, make("kbd", {textContent: letter}), " ", make("span", {textContent: text}));
    made.setAttribute("aria-keyshortcuts", letter);
    return made;
  };
  const accept = button("A", "", () => decide(cards[at].dataset.suggested));
  const keep = button("K", "", () => decide(cards[at].dataset.label));
  const other = button("C", "Another class", () => choice.focus());
  const out = button("X", "Leave out", () => decide(""));
  const back = button("U", "Undo", undo);
  const before = button("P", "Previous", () => move(-1)), after = button("N", "Next", () => move(1));
  const keys = {a: accept, k: keep, c: other, x: out, u: back, p: before, n: after};
  const file = desk.dataset.file;
  const save_as = make("a", {className: "button", download: `${file}.csv`, textContent: `Download ${file}`});
  const usage = make("p", {className: "sub"}, "Then ", make("code", {textContent: desk.dataset.usage}), ".");

  choice.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choice.blur();
    if (event.key !== "Enter" || !choice.value) return;
    if (!names.includes(choice.value)) {
      said.textContent = `There is no class ${choice.value}.`;
      return;
    }
    choice.blur();
    decide(choice.value);
  });
  document.addEventListener("keydown", (event) => {
    const wanted = keys[event.key.toLowerCase()];
    if (!wanted || wanted.hidden || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    wanted.click();
  });

  const show = (place) => {
    at = place;
    const known = labels(), card = cards[at], {id, label, suggested} = card.dataset;
    const image = card.querySelector(":scope > img, :scope > .gone");
    picture.replaceChildren(...(image ? [image.cloneNode(true)] : []));
    facts.replaceChildren(
      make("h3", {textContent: card.querySelector("h3").innerText}),
      make("p", {}, ...(label ? ["given ", make("strong", {textContent: label}), ", "] : []), "suggested ", make("strong", {textContent: suggested})),
      make("p", {className: "why", textContent: words(card, known.get(id))}),
    );
    accept.lastChild.textContent = `It is ${suggested}`;
    keep.lastChild.textContent = `Keep ${label}`;
    keep.hidden = !label;
    choice.value = "";
    back.disabled = !steps.length;
    const changed = [...known].filter(([name, now]) => now !== cards.find((one) => one.dataset.id === name)?.dataset.label);
    said.textContent = `Card ${at + 1} of ${cards.length}; ${known.size} decided, of them ${changed.length} changed or left out.`;
    save_as.href = `data:text/csv;charset=utf-8,${encodeURIComponent(table())}`;
    for (const one of cards) {
      const now = words(one, known.get(one.dataset.id));
      one.dataset.decided = now;
      one.toggleAttribute("aria-current", one === card);
    }
  };
  if (cards.length) {
    desk.append(make("h2", {textContent: desk.getAttribute("aria-label")}), make("div", {className: "desk"}, picture, make("div", {}, facts,
      make("div", {className: "orders"}, accept, keep, other, choice, out, back, before, after), said,
      make("p", {}, save_as), usage)), list);
    desk.hidden = false;
    cards.forEach((card, place) => card.addEventListener("click", () => { show(place); desk.scrollIntoView({block: "nearest"}); }));
    const open = labels();
    show(Math.max(cards.findIndex((card) => !open.has(card.dataset.id)), 0));
  }
}
