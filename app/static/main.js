// Starts everything: theme, tabs, playground and live view.

import { $ } from "./dom.js";
import { request } from "./events.js";
import { startPlayground } from "./playground.js";
import { startLive } from "./live.js";

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = localStorage.getItem("theme") ?? "auto";
  const apply = () => {
    const dark = chosen === "dark" || (chosen === "auto" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = SIGNS[chosen];
    $("theme").setAttribute("aria-label", `Colours: ${NAMES[chosen]}`);
    $("theme").title = `Colours: ${NAMES[chosen]}`;
  };
  system.addEventListener("change", apply);
  $("theme").addEventListener("click", () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    localStorage.setItem("theme", chosen);
    apply();
  });
  apply();
}

/** On a narrow screen one view at a time (WAI-ARIA tabs pattern); on a wide one the tabs are hidden. */
function startTabs() {
  const tabs = ["playground", "live"].map((name) => ({ tab: $(`tab-${name}`), panel: $(name) }));
  const select = (chosen) => {
    for (const { tab, panel } of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panel.toggleAttribute("data-inactive", !on);
    }
    window.dispatchEvent(new Event("resize"));
  };
  tabs.forEach(({ tab }, index) => {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = tabs[1 - index].tab;
      select(other);
      other.focus();
    });
  });
  select(tabs[0].tab);
}

/** At each connection, as the server may have been started anew with another model. */
async function nameModel(signal) {
  const models = await (await request("/v1/models", { signal })).json();
  $("model").textContent = models.data[0].id;
}

startTheme();
startTabs();
startPlayground();
startLive(nameModel);
