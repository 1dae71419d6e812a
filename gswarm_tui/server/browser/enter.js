// Exchanges the token after the # of the link for a cookie. What follows a # is sent to no server and is in no log.
"use strict";

async function enter() {
  const token = location.hash.slice(1);
  const answer = await fetch("enter", { method: "POST", body: token });
  if (answer.ok) {
    location.replace("screen"); // "back" doesn't lead to the token; the browser's list of visited pages keeps it
  } else {
    document.getElementById("message").textContent = (await answer.json()).detail;
  }
}

window.addEventListener("hashchange", enter); // another link of the same address was opened
enter().catch(() => {
  document.getElementById("message").textContent = "The server doesn't answer; reload this page.";
});
