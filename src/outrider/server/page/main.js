// Puts the page together.

import { apiKey, request, ApiError } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { Figures } from "./figures.js";
import { Live } from "./live.js";
import { Settings } from "./settings.js";

const STATES = {
  waiting: "Connecting",
  online: "Connected",
  offline: "No answer from the server",
  locked: "API key needed",
};

function setServerState(state) {
  byId("server-state").dataset.state = state;
  byId("server-state").textContent = STATES[state];
  if (state === "online" && !byId("model").textContent) showModel();
}

// The dialog for the key: one at a time. A request that needs a key opens it (`again`: also when it
// was cancelled before); what runs in the background asks once.
let asking = null;
let declined = false;

function askForKey(again) {
  byId("open-key").hidden = false;
  if (asking) return asking;
  if (declined && !again) return Promise.resolve(false);
  const dialog = byId("key-dialog");
  if (apiKey.get()) byId("key-note").textContent = "The server refused the key. Try another one.";
  byId("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  asking = new Promise((decided) => {
    dialog.addEventListener(
      "close",
      () => {
        asking = null;
        declined = dialog.returnValue !== "use";
        if (!declined) apiKey.set(byId("key").value);
        decided(!declined);
      },
      { once: true },
    );
  });
  return asking;
}

function setUpKeyDialog() {
  const dialog = byId("key-dialog");
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close("use");
  });
  byId("key-cancel").addEventListener("click", () => dialog.close(""));
  byId("open-key").addEventListener("click", () => askForKey(true));
}

function setUpTheme(live) {
  const names = { auto: "as the system", light: "light", dark: "dark" };
  const root = document.documentElement;
  const show = () => {
    byId("theme").setAttribute("aria-label", `Colours: ${names[root.dataset.theme]}`);
  };
  byId("theme").addEventListener("click", () => {
    const order = Object.keys(names);
    root.dataset.theme = order[(order.indexOf(root.dataset.theme) + 1) % order.length];
    localStorage.setItem("outrider.theme", root.dataset.theme);
    show();
    live.draw();
  });
  show();
}

async function showModel() {
  try {
    const { data } = await (await request("v1/models")).json();
    byId("model").textContent = data[0].id;
    document.title = `${data[0].id} · Outrider`;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error; // else the strip says that nobody answers
  }
}

const settings = new Settings();
const figures = new Figures();
const chat = new Chat({ settings, figures, askForKey, onServer: setServerState });
const live = new Live({
  onFacts: (server) => {
    settings.setServer(server);
    figures.setServer(server);
    chat.suggest(server.example_questions);
  },
  onServer: setServerState,
  askForKey,
});
setUpKeyDialog();
setUpTheme(live);
figures.draw();
live.draw();
live.run();
byId("message").focus();
