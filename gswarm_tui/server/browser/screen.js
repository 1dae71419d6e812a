// What textual-serve's own script lacks: a socket that opens once page and server have proved to each other that they
// know the link's token, reports why its connection ended, and reconnects without loading anything, because another
// program may have taken the server's port meanwhile. docs/decisions/016-browser.md has the attacks.
"use strict";

const RETRY_MS = 2000;
const ENDED = 1000; // someone pressed q
const LEFT = 1001; // the page is closed or reloaded
const REFUSED = 4000; // the close reason is a sentence to show
const OVER = 4001; // the same, and there is nothing to open again
const STORED = "gswarm-tui";
const NO_LINK = "Open the whole link that gswarm-tui web printed, with its token after the #.";
const WRONG_LINK =
  "This link isn't valid, or its recording has ended; open the one that gswarm-tui web printed last.";
const STRANGER = "The program at this address doesn't know this page's link; reconnecting …";
const PORT = location.port || "80";
const INSECURE =
  `This page can check its server only over https:// or at localhost: run ssh -L ${PORT}:${location.hostname}:${PORT} ` +
  `${location.hostname}, then open the link with http://localhost:${PORT}/ in front.`;
const PlainSocket = window.WebSocket;

async function hmac(key, text) {
  const [secret, message] = [key, text].map((each) => new TextEncoder().encode(each));
  const usable = await crypto.subtle.importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return hex(await crypto.subtle.sign("HMAC", usable, message));
}

function hex(bytes) {
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function next(link, type) {
  return new Promise((resolve) => link.addEventListener(type, resolve, { once: true }));
}

class ProvenSocket extends EventTarget {
  constructor(url) {
    super();
    this.url = url;
    document.getElementById("open").addEventListener("click", () => this.connect());
    this.start();
  }

  async start() {
    const token = location.hash.slice(1); // what follows a # is sent to no server
    history.replaceState(null, "", location.pathname); // "back" doesn't lead to the token
    if (!crypto.subtle) {
      return show(INSECURE);
    }
    // The key is worth nothing at another address, so that no server there can pass this page's proofs on to its own.
    const address = document.documentElement.dataset.address;
    this.key = token ? await hmac(token, `gswarm-tui web ${address}`) : sessionStorage.getItem(STORED);
    return this.key ? this.connect() : show(NO_LINK);
  }

  async connect() {
    const link = new PlainSocket(this.url);
    link.binaryType = "arraybuffer";
    let failure = "Connection lost; reconnecting …";
    link.addEventListener("close", (event) => this.closed(event, link === this.link, failure));
    await next(link, "open");
    const own = hex(crypto.getRandomValues(new Uint8Array(32)));
    link.send(own);
    const [other, ...proofs] = JSON.parse((await next(link, "message")).data);
    if (!proofs.includes(await hmac(this.key, `server ${own} ${other}`))) {
      failure = STRANGER;
      return link.close();
    }
    link.send(await hmac(this.key, `page ${own} ${other}`));
    document.title = (await next(link, "message")).data;
    this.link = link;
    sessionStorage.setItem(STORED, this.key);
    link.addEventListener("message", (event) => this.pass(event.data));
    document.getElementById("notice").hidden = true;
    this.pass(new TextEncoder().encode("\x1bc").buffer); // resets the terminal, which may show the last connection
    this.dispatchEvent(new Event("open"));
    document.querySelector(".xterm-helper-textarea").focus();
  }

  closed({ code, reason }, proven, failure) {
    // Whoever answers a reload now may be another program, which could read what is stored.
    if (code !== LEFT) {
      sessionStorage.removeItem(STORED);
    }
    if (proven && code === ENDED) {
      show("This screen is closed; recording continues.", true);
    } else if (proven && (code === REFUSED || code === OVER)) {
      show(reason, code === REFUSED);
    } else if (failure === STRANGER && !this.link) {
      show(WRONG_LINK);
    } else {
      show(failure);
      setTimeout(() => this.connect(), RETRY_MS);
    }
  }

  pass(data) {
    this.dispatchEvent(new MessageEvent("message", { data }));
  }

  send(text) {
    this.link?.send(text);
  }
}
window.WebSocket = ProvenSocket;

function show(message, button = false) {
  document.getElementById("message").textContent = message;
  document.getElementById("open").hidden = !button;
  document.getElementById("notice").hidden = false;
  if (button) {
    document.getElementById("open").focus();
  }
}

window.addEventListener("hashchange", () => location.reload()); // another link of the same address was opened
document.addEventListener("DOMContentLoaded", () => {
  const socket = new URL("ws", location.href);
  socket.protocol = socket.protocol.replace("http", "ws");
  document.getElementById("terminal").dataset.sessionWebsocketUrl = socket.href;
});
