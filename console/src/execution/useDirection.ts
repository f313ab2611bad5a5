import { useSyncExternalStore } from "react";
import type { Direction } from "./layout";

const NARROW = "(max-width: 760px)";

function subscribe(listener: () => void): () => void {
  const query = window.matchMedia(NARROW);
  query.addEventListener("change", listener);
  return () => query.removeEventListener("change", listener);
}

/** The direction in which a graph fits the screen. */
export function useDirection(): Direction {
  return useSyncExternalStore(subscribe, () => (window.matchMedia(NARROW).matches ? "TB" : "LR"));
}
