// The live view: reads the feed and hands each frame to the pictures.

import { $, duration } from "./dom.js";
import { eventData, request } from "./events.js";
import { RateChart, StepsChart } from "./charts.js";
import { PageMap } from "./pagemap.js";
import { TreePicture } from "./tree.js";
import { Waterfall } from "./waterfall.js";

const PERIOD_S = 0.25;
const RETRY_MS = 1500;
const SILENCE_MS = 5000;

/** `connected` is awaited whenever the feed is there anew; where it fails, so has the connection. */
export function startLive(connected) {
  const pictures = [new RateChart(), new StepsChart(), new PageMap(), new TreePicture(), new Waterfall()];
  let last;
  const draw = (frame) => {
    last = frame;
    tiles(frame.picture);
    for (const picture of pictures) picture.draw(frame);
  };
  const redraw = () => {
    if (last) draw({ picture: last.picture, news: { steps: [], ended: [] } });
  };
  window.addEventListener("resize", redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  follow(draw, async (signal) => {
    await connected(signal);
    pictures.forEach((picture) => picture.reset?.());
  });
}

/**
 * Read the feed for ever; a page that nobody sees does not ask for it. A connection that broke without a word
 * (a pulled plug, a machine asleep) is known by its silence.
 */
async function follow(draw, connected) {
  for (;;) {
    if (document.hidden) await once(document, "visibilitychange");
    const stopper = new AbortController();
    const stop = () => document.hidden && stopper.abort();
    document.addEventListener("visibilitychange", stop);
    let silence;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => stopper.abort(new Error("silence")), SILENCE_MS);
    };
    try {
      const response = await request(`/live?period=${PERIOD_S}`, { signal: stopper.signal });
      heard();
      await connected(stopper.signal);
      show("on", "connected");
      for await (const data of eventData(response)) {
        heard();
        draw(JSON.parse(data));
      }
      show("off", "server stopped");
    } catch (error) {
      if (error.name !== "AbortError") show("off", error.status ? error.message : "no connection");
    }
    clearTimeout(silence);
    document.removeEventListener("visibilitychange", stop);
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

const once = (target, type) => new Promise((resolve) => target.addEventListener(type, resolve, { once: true }));

function show(state, text) {
  if ($("connection").textContent === text) return;
  $("connection").dataset.state = state;
  $("connection").textContent = text;
}

function tiles({ running, waiting, rates, ttft, inter_token: interToken, counters, pages, max_batch_tokens: budget }) {
  $("tokens-rate").textContent = rates ? rate(rates.generation_tokens) : "–";
  $("running").textContent = running;
  $("running-note").textContent = `${counters.started.toLocaleString("en")} started`;
  $("waiting").textContent = waiting;
  $("waiting-note").textContent = counters.preemptions ? `${counters.preemptions} preempted` : `${budget} tokens a step`;
  percentiles("ttft", ttft);
  percentiles("inter-token", interToken);
  const used = pages.protected + pages.private;
  $("pages-used").textContent = `${Math.round((100 * used) / pages.total)} %`;
  $("pages-used-note").textContent = `${used.toLocaleString("en")} of ${pages.total.toLocaleString("en")}`;
  const queries = counters.prefix_queries;
  $("hit-rate").textContent = queries ? `${Math.round((100 * counters.prefix_hits) / queries)} %` : "–";
  $("hit-note").textContent = `${counters.prefix_hits.toLocaleString("en")} tokens`;
}

function percentiles(id, found) {
  $(id).textContent = found ? duration(found.p50) : "–";
  $(`${id}-note`).textContent = found ? `p90 ${duration(found.p90)} · p99 ${duration(found.p99)}` : "nothing lately";
  $(`${id}-note`).title = $(`${id}-note`).textContent;
}

const rate = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1));
