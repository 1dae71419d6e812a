// What textual-serve's own script lacks: it sends keys without a click first, reports why its connection ended,
// and reconnects.
"use strict";

const RETRY_MS = 2000;
const ENDED = 1000; // someone pressed q
const REFUSED = 4000; // the close reason is a sentence to show
const OVER = 4001; // the same, and there is nothing to open again

class ReportingSocket extends WebSocket {
  constructor(...words) {
    super(...words);
    this.addEventListener("open", () => document.querySelector(".xterm-helper-textarea").focus());
    this.addEventListener("close", (event) => closed(event.code, event.reason));
  }
}
window.WebSocket = ReportingSocket;

function closed(code, reason) {
  if (code === ENDED) {
    show("This screen is closed; recording continues.");
  } else if (code === REFUSED) {
    show(reason);
  } else if (code === OVER) {
    show(reason, false);
  } else {
    show("Connection lost; reconnecting …", false);
    setTimeout(reconnect, RETRY_MS);
  }
}

async function reconnect() {
  try {
    const answer = await fetch("screen", { cache: "no-store" });
    if (answer.status < 500) {
      location.reload();
      return;
    }
  } catch {
    // the server doesn't answer yet
  }
  setTimeout(reconnect, RETRY_MS);
}

function show(message, button = true) {
  document.getElementById("message").textContent = message;
  document.getElementById("open").hidden = !button;
  document.getElementById("notice").hidden = false;
  if (button) {
    document.getElementById("open").focus();
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const socket = new URL("ws", location.href);
  socket.protocol = socket.protocol.replace("http", "ws");
  document.getElementById("terminal").dataset.sessionWebsocketUrl = socket.href;
  document.getElementById("open").addEventListener("click", () => location.reload());
});
