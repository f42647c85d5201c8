{
  const source = document.body.dataset.source;
  const trouble = document.getElementById("trouble");
  const pause = document.getElementById("pause");
  const shown = new Map();
  let again = Number(document.body.dataset.again), failures = 0, timer = 0;

  /* What has the focus, or is scrolled to, is so afterwards too. */
  const replace = (place, html) => {
    const able = "a, button, summary, [tabindex]";
    const at = [...place.querySelectorAll(able)].indexOf(document.activeElement);
    const scrolled = [...place.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    place.innerHTML = html;
    dress(place);
    place.querySelectorAll(".scroll").forEach((box, i) => { if (scrolled[i]) box.scrollTo(...scrolled[i]); });
    if (at >= 0) place.querySelectorAll(able)[at]?.focus({preventScroll: true});
  };

  const show = (parts) => {
    for (const place of document.querySelectorAll("[data-part]")) {
      const html = parts[place.dataset.part];
      if (html !== undefined && shown.get(place) !== html) {
        if (shown.has(place) || place.innerHTML !== html) replace(place, html);
        shown.set(place, html);
      }
    }
  };

  const poll = async () => {
    try {
      const answer = await fetch(source, {cache: "no-cache"});
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const update = await answer.json();
      if (update.reload) location.reload();
      show(update.parts);
      again = update.again;
      failures = 0;
      trouble.hidden = true;
    } catch (error) {
      failures += 1;
      if (failures === 2) {
        trouble.textContent = "The dashboard's server does not answer; what is shown may be old. Trying again.";
        trouble.hidden = false;
      }
    }
    plan();
  };

  const resting = () => pause.getAttribute("aria-pressed") === "true" || document.hidden;

  const plan = () => {
    clearTimeout(timer);
    if (!resting()) timer = setTimeout(poll, 1000 * (failures ? Math.min(2 ** failures, 60) : again));
  };

  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") !== "true"));
    if (!resting()) poll();
  });
  document.addEventListener("visibilitychange", () => { if (!resting()) poll(); });
  plan();
}
