// The list of rollouts and the filter of held-out pairs.
"use strict";

(() => {
  const form = document.getElementById("filters"), list = document.getElementById("list");
  const more = document.getElementById("more"), count = document.getElementById("count");
  const batch = 20;
  let found = [], shown = 0;

  function element(tag, properties, ...children) {
    const { className, ...rest } = properties || {};
    const made = document.createElement(tag);
    if (className) made.className = className;
    for (const [name, value] of Object.entries(rest)) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null && child !== ""));
    return made;
  }

  function number(value, sign) {
    if (value === null) return "–";
    const size = Math.abs(value);
    const text = size !== 0 && size < 0.001 ? value.toExponential(1) : String(+value.toFixed(size >= 100 ? 1 : 3));
    return ((sign && value > 0 ? "+" : "") + text).replace("-", "−");
  }

  // With as many decimals everywhere, so that a column of them lines up.
  function signed(value) {
    if (value === null) return "–";
    const size = Math.abs(value);
    const text = size !== 0 && size < 0.0005 ? value.toExponential(0) : value.toFixed(size >= 100 ? 1 : 3);
    return ((value > 0 ? "+" : "") + text).replace("-", "−");
  }

  function svg(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  const colour = (index) => (page.colours?.[index] ?? index) % 8;

  function bar(value, reach, index) {
    const width = 46 * Math.min(Math.abs(value) / reach, 1);
    const picture = svg("svg", { class: `diverging plain c${colour(index)}`, width: "100%", height: 14, "aria-hidden": "true" });
    picture.append(svg("line", { class: "zero", x1: "50%", x2: "50%", y1: 0, y2: 14 }),
      svg("rect", { x: `${value > 0 ? 50 : 50 - width}%`, y: 2, width: `${width}%`, height: 10 }));
    return picture;
  }

  function conversation(turns, className) {
    return turns.flatMap(([role, text]) => [
      role ? element("p", { className: "role" }, role) : "",
      element("pre", { className, ...(text.length > 1200 ? { tabindex: "0", "aria-label": role || "text" } : {}) }, text),
    ]);
  }

  function parts(item, reach) {
    const titles = ["reward", "score", ...(item.n ? ["normalised"] : []), "weight"];
    const head = titles.map((text, index) => element("th", { scope: "col", className: index ? "n" : "" }, text));
    head.push(element("th", { scope: "col", className: "n" }, "part"), element("td", { className: "bar" }));
    const order = page.rewards.map((_, index) => index);
    const many = order.length > 8;
    if (many) order.sort((a, b) => Math.abs(item.k[b] || 0) - Math.abs(item.k[a] || 0));
    const cell = (text) => element("td", { className: "n" }, text);
    const rows = order.map((index) => {
      const part = item.k[index];
      return element("tr", null,
        element("th", { scope: "row" }, element("span", { className: `swatch c${colour(index)}`, "aria-hidden": "true" }), page.rewards[index]),
        cell(number(item.v[index])), item.n ? cell(signed(item.n[index])) : null,
        cell(number(item.w[index])), cell(signed(part)),
        element("td", { className: "bar" }, part === null ? "" : bar(part, reach, index)));
    });
    return element("table", many ? { className: "many", tabindex: "0", "aria-label": "rewards of this rollout, the largest part first" } : null,
      element("thead", null, element("tr", null, ...head)), element("tbody", null, ...rows));
  }

  function card(item, reach) {
    const prompt = page.rollouts.prompts[item.p] || [];
    const asked = prompt.length ? prompt[prompt.length - 1][1].replace(/\s+/g, " ").slice(0, 200) : "";
    const facts = [`step ${item.s}`, item.g && `group ${item.g}`, item.t, item.l !== null && `${number(item.l)} tokens`, item.r && `rollout ${item.r}`];
    return element("li", { className: "rollout" },
      element("header", null, element("strong", { title: "advantage", "aria-label": `advantage ${number(item.a, true)}` },
        item.a === null ? "–" : (item.a > 0 ? "+" : "") + item.a.toFixed(2).replace("-", "−")),
        ...facts.filter(Boolean).map((fact) => element("span", null, fact))),
      element("div", { className: "text" },
        prompt.length ? element("details", null, element("summary", null, asked), ...conversation(prompt, "")) : null,
        ...(item.c.length ? conversation(item.c, "answer") : [element("p", { className: "none" }, "no completion recorded")])),
      parts(item, reach));
  }

  function matches(item, wish) {
    if (wish.first !== null && !(item.s >= wish.first)) return false;
    if (wish.last !== null && !(item.s <= wish.last)) return false;
    if (wish.group && item.g !== wish.group) return false;
    if (wish.why && !item.m.includes(wish.why)) return false;
    if (wish.reward !== null) {
      const score = item.v[wish.reward];
      if (wish.relation === "none") { if (score !== null) return false; }
      else if (score === null || wish.value === null) return false;
      else if (wish.relation === "ge" && !(score >= wish.value)) return false;
      else if (wish.relation === "le" && !(score <= wish.value)) return false;
      else if (wish.relation === "eq" && Math.abs(score - wish.value) > 1e-6) return false;
    }
    return !wish.text || [...(page.rollouts.prompts[item.p] || []), ...item.c].some(([, text]) => text.toLowerCase().includes(wish.text));
  }

  const missingLast = (value, worst) => value === null ? worst : value;
  const orders = {
    high: (a, b) => missingLast(b.a, -Infinity) - missingLast(a.a, -Infinity),
    low: (a, b) => missingLast(a.a, Infinity) - missingLast(b.a, Infinity),
    step: (a, b) => a.s - b.s,
    long: (a, b) => missingLast(b.l, -1) - missingLast(a.l, -1),
  };

  function grow() {
    // One part far beyond all others would leave no length to them: the bars end where 98 % of the parts do.
    const sizes = found.flatMap((item) => item.k.map((part) => Math.abs(part || 0))).sort((a, b) => a - b);
    const reach = Math.max(1e-9, sizes[Math.floor(0.98 * (sizes.length - 1))] || 0);
    list.append(...found.slice(shown, shown + batch).map((item) => card(item, reach)));
    shown = Math.min(found.length, shown + batch);
    more.hidden = shown >= found.length;
    count.textContent = found.length ? `${found.length} match; ${shown} are listed.` : "No rollout matches; loosen a filter.";
  }

  function filter() {
    const value = (name) => form.elements[name]?.value ?? "";
    const given = (name) => value(name) === "" ? null : Number(value(name));
    const wish = { text: value("text").toLowerCase(), first: given("first"), last: given("last"), reward: given("reward"),
      relation: value("relation"), value: given("value"), group: value("group"), why: value("why") };
    // Infinity minus Infinity is NaN, which a sort takes as equal by accident only; || 0 makes that explicit.
    const order = orders[value("order")];
    found = page.rollouts.items.filter((item) => matches(item, wish)).sort((a, b) => order(a, b) || 0);
    list.replaceChildren();
    shown = 0;
    grow();
  }

  if (form) {
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(filter));
    more.addEventListener("click", () => {
      const first = shown;
      grow();
      list.children[first]?.querySelector("summary")?.focus();
    });
    filter();
  }

  // What elsewhere on the page points at rollouts: a finding at those that show it, a prompt at one of its groups.
  for (const button of document.querySelectorAll("[data-why], [data-group]")) {
    button.addEventListener("click", () => {
      form.reset();
      setTimeout(() => {
        const { why, step, group } = button.dataset;
        if (why) form.elements.why.value = why;
        if (group) [form.elements.first.value, form.elements.last.value, form.elements.group.value] = [step, step, group];
        filter();
        document.getElementById("rollouts").scrollIntoView();
        count.focus({ preventScroll: true });
      });
    });
  }
  addEventListener("beforeprint", () => document.querySelectorAll("details.card").forEach((card) => { card.open = true; }));

  const kinds = document.querySelectorAll("[data-filter='pairs'] button");
  for (const button of kinds) {
    button.addEventListener("click", () => {
      for (const other of kinds) other.setAttribute("aria-pressed", String(other === button));
      for (const pair of document.querySelectorAll(".pair")) pair.hidden = Boolean(button.dataset.kind) && pair.dataset.kind !== button.dataset.kind;
    });
  }
})();
