// Runs before the page is drawn, so that a chosen theme does not flash.
const chosen = localStorage.getItem("headway-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset["theme"] = chosen;

// Charts format numbers by the browser's language. Some systems name one that no formatter knows: en-US@posix.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
