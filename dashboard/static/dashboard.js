// Small behaviours: the theme, addresses of searches, buttons that copy.
"use strict";
(() => {
  const root = document.documentElement;
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    document.dispatchEvent(new Event("themechange"));
  });

  // A search changes the address, so that what is seen can be shared.
  document.addEventListener("htmx:afterRequest", (event) => {
    const form = event.target.closest?.("form.search");
    if (!form || !event.detail.successful) return;
    const kept = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...kept]) if (!value) kept.delete(name);
    history.replaceState(null, "", location.pathname + (kept.size ? `?${kept}` : ""));
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-go]")) location.assign(event.target.value);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    await navigator.clipboard.writeText(source.textContent.trim());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
})();
