// Runs before the page is drawn, so that a chosen theme does not flash; the rest are modules.
document.documentElement.dataset.theme = localStorage.getItem("outrider.theme") ?? "auto";
