"use strict";
// The key that signs in comes in the part of the address that is sent to nobody. It is kept for this tab alone.
const KEPT = "tenuto-key";
const base = location.pathname.replace(/docs\/?$/, "");
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given) {
  sessionStorage.setItem(KEPT, given);
  history.replaceState(null, "", location.pathname);
}

const headers = () => {
  const key = sessionStorage.getItem(KEPT);
  return key ? { Authorization: `Bearer ${key}` } : {};
};

const who = document.getElementById("who");
const told = document.getElementById("told");
const field = document.getElementById("key");

async function signIn() {
  const key = sessionStorage.getItem(KEPT);
  who.dataset.signedIn = "";
  if (!key) {
    say("not signed in: paste an API key", "");
    return;
  }
  const answer = await fetch(`${base}v1/definitions?limit=1`, { headers: headers() });
  if (answer.status === 401) {
    sessionStorage.removeItem(KEPT);
    say("this key is not valid, or not any more", "bad");
    return;
  }
  who.dataset.signedIn = "yes";
  say(`signed in with ${key.slice(0, 14)}…`, "good");
}

function say(text, kind) {
  told.textContent = text;
  told.className = kind;
}

who.addEventListener("submit", (event) => {
  event.preventDefault();
  if (field.value.trim()) sessionStorage.setItem(KEPT, field.value.trim());
  field.value = "";
  signIn();
});
document.getElementById("leave").addEventListener("click", () => {
  sessionStorage.removeItem(KEPT);
  signIn();
});

async function send(form) {
  const { method, path } = form.dataset;
  const query = new URLSearchParams();
  const sent = headers();
  let address = base + path.slice(1);
  for (const input of form.querySelectorAll("[data-in]")) {
    const { name, value } = input;
    if (input.dataset.in === "path") address = address.replace(`{${name}}`, encodeURIComponent(value));
    else if (value && input.dataset.in === "query") query.set(name, value);
    else if (value) sent[name] = value;
  }
  const body = form.querySelector("textarea");
  if (body && body.value.trim()) sent["Content-Type"] = "application/json";
  if (query.size) address += `?${query}`;
  const shown = form.querySelector("pre");
  shown.hidden = false;
  shown.className = "";
  shown.textContent = `${method} ${address}\n…`;
  const options = { method, headers: sent };
  if (body && body.value.trim()) options.body = body.value;
  try {
    await show(shown, await fetch(address, options), `${method} ${address}`);
  } catch (error) {
    shown.className = "bad";
    shown.textContent = `${method} ${address}\n${error}`;
  }
}

// Whatever comes is shown as text, and a stream as it comes.
async function show(shown, answer, asked) {
  shown.className = answer.ok ? "good" : "bad";
  const kept = ["location", "idempotency-replayed", "retry-after", "x-correlation-id"];
  const head = kept.filter((name) => answer.headers.has(name)).map((name) => `${name}: ${answer.headers.get(name)}\n`);
  const first = `${asked}\n${answer.status} ${answer.statusText}\n${head.join("")}\n`;
  shown.textContent = first; // all that there is of an answer without a body
  if (!answer.body) return;
  let text = "";
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += decoder.decode(part.value, { stream: true });
    shown.textContent = first + text;
  }
  if (text && (answer.headers.get("content-type") || "").includes("json")) {
    shown.textContent = first + JSON.stringify(JSON.parse(text), null, 2);
  }
}

for (const form of document.querySelectorAll("form[data-path]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}
signIn();
