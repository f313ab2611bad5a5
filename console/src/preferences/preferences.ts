import { useSyncExternalStore } from "react";

export interface Preferences {
  theme: "system" | "light" | "dark";
  times: "relative" | "local" | "utc";
  density: "regular" | "compact";
  shortcuts: "on" | "off";
}

const KEY = "tenuto-preferences";
const DEFAULTS: Preferences = { theme: "system", times: "relative", density: "regular", shortcuts: "on" };
const listeners = new Set<() => void>();
let current = stored();

/** What this browser remembers: nothing but how the console looks and behaves. */
export function usePreferences(): Preferences {
  return useSyncExternalStore(subscribe, () => current);
}

export function setPreference<K extends keyof Preferences>(name: K, value: Preferences[K]): void {
  current = { ...current, [name]: value };
  try {
    localStorage.setItem(KEY, JSON.stringify(current));
  } catch {
    // storage is off: the preference lasts until the page is closed
  }
  applyPreferences();
  for (const listener of listeners) listener();
}

/** Sets the attributes of the page that the styles depend on. */
export function applyPreferences(): void {
  const { dataset } = document.documentElement;
  dataset["theme"] = current.theme;
  dataset["density"] = current.density;
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function stored(): Preferences {
  try {
    return { ...DEFAULTS, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Preferences>) };
  } catch {
    return DEFAULTS;
  }
}
