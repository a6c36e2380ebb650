// Runs before the page is drawn, so that a chosen theme does not flash: everything else is a module.
document.documentElement.dataset.theme = localStorage.getItem("outrider.theme") ?? "auto";
