// Pages that follow something: the events of the address in <… data-live="ADDRESS" data-seen="MARK"> become
// events of the body, live:change and live:state, and live:slow once in a while for parts that take more.
// A page that nobody sees hears nothing, and what it missed as soon as it is seen again.
"use strict";
(() => {
  const SLOW_MS = 10000;
  const AGAIN_MS = 10000;
  const root = document.querySelector("[data-live]");
  if (!root) return;
  let seen = root.dataset.seen, source = null, slow = 0, again = 0;

  const tell = (name) => document.body.dispatchEvent(new Event(`live:${name}`));
  const news = (event) => {
    seen = event.lastEventId;
    tell(event.type);
    slow ||= setTimeout(() => { slow = 0; tell("slow"); }, SLOW_MS);
  };

  const lost = document.createElement("p");
  lost.className = "lost";
  lost.setAttribute("role", "status");
  document.querySelector("main").append(lost);
  const say = (text) => { if (lost.textContent !== text) lost.textContent = text; };

  function follow() {
    clearTimeout(again);
    source?.close();
    source = null;
    if (document.hidden) return;
    source = new EventSource(`${root.dataset.live}?seen=${encodeURIComponent(seen)}`);
    source.addEventListener("change", news);
    source.addEventListener("state", news);
    source.onopen = () => say("");
    source.onerror = () => {
      say("The dashboard does not answer. What you see is what it said last; it goes on by itself.");
      if (source.readyState === EventSource.CLOSED) again = setTimeout(follow, AGAIN_MS);
    };
  }

  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
  follow();
})();
