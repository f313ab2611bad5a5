import "./design/fonts.css";
import "./design/tokens.css";
import "./design/base.css";
import "./design/controls.css";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import { applyPreferences } from "./preferences/preferences";
import { takeLinkToken } from "./session/session";

applyPreferences();
const linkToken = takeLinkToken();
const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App linkToken={linkToken} />
    </StrictMode>,
  );
}
