import "./design/fonts.css";
import "./design/tokens.css";
import { createRoot } from "react-dom/client";

const root = document.getElementById("root");
if (root) createRoot(root).render(<main>Tenuto</main>);
