import { type AnchorHTMLAttributes, type MouseEvent, useCallback, useMemo, useSyncExternalStore } from "react";
import { PREFIX } from "../place";

const CHANGED = "tenuto:location";

/** The page that is open: the path below the service's prefix, and the parameters. */
export interface Place {
  path: string;
  parameters: URLSearchParams;
}

export type Changes = Record<string, string | null>;

function subscribe(listener: () => void): () => void {
  window.addEventListener("popstate", listener);
  window.addEventListener(CHANGED, listener);
  return () => {
    window.removeEventListener("popstate", listener);
    window.removeEventListener(CHANGED, listener);
  };
}

function snapshot(): string {
  return window.location.pathname + window.location.search;
}

export function usePlace(): Place {
  const text = useSyncExternalStore(subscribe, snapshot);
  return useMemo(() => placeOf(text, PREFIX), [text]);
}

export function placeOf(text: string, prefix: string): Place {
  const [pathname = "", search = ""] = text.split("?", 2);
  const path =
    prefix && (pathname === prefix || pathname.startsWith(`${prefix}/`)) ? pathname.slice(prefix.length) : pathname;
  return { path: path || "/", parameters: new URLSearchParams(search) };
}

/** Opens a page of the console. `replace` keeps the current one out of the history. */
export function navigate(to: string, { replace = false } = {}): void {
  const url = PREFIX + to;
  if (replace) window.history.replaceState(null, "", url);
  else window.history.pushState(null, "", url);
  window.dispatchEvent(new Event(CHANGED));
}

/** The path of a page with changed parameters. `null` removes one. */
export function withParameters(place: Place, changes: Changes): string {
  const parameters = new URLSearchParams(place.parameters);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") parameters.delete(name);
    else parameters.set(name, value);
  }
  const text = parameters.toString();
  return place.path + (text ? `?${text}` : "");
}

/** The parameters of the page, and a function that changes them in place. */
export function useParameters(): [URLSearchParams, (changes: Changes) => void] {
  const place = usePlace();
  const change = useCallback(
    (changes: Changes) => navigate(withParameters(place, changes), { replace: true }),
    [place],
  );
  return [place.parameters, change];
}

interface LinkProps extends AnchorHTMLAttributes<HTMLAnchorElement> {
  to: string;
}

/** A link to a page of the console. */
export function Link({ to, onClick, ...rest }: LinkProps) {
  const open = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (event.defaultPrevented || !isPlain || rest.target === "_blank") return;
    event.preventDefault();
    navigate(to);
    window.scrollTo(0, 0);
  };
  return <a href={PREFIX + to} onClick={open} {...rest} />;
}

/** The parts of a path that matches a pattern such as `/executions/{id}`. */
export function matchPath(pattern: string, path: string): Record<string, string> | null {
  const names = pattern.split("/");
  const parts = path.replace(/(.)\/$/, "$1").split("/");
  if (names.length !== parts.length) return null;
  const found: Record<string, string> = {};
  for (const [index, name] of names.entries()) {
    const part = parts[index] ?? "";
    if (name.startsWith("{")) found[name.slice(1, -1)] = decoded(part);
    else if (name !== part) return null;
  }
  return found;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
