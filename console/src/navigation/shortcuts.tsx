import { useEffect } from "react";
import { Dialog } from "../elements/Dialog";
import { setPreference, usePreferences } from "../preferences/preferences";
import { navigate } from "./location";
import { PAGES } from "./pages";

const WAIT = 1_500;

/** Single keys open pages and the search. They can be turned off, because dictation software types them. */
export function useShortcuts(onHelp: () => void): void {
  const { shortcuts } = usePreferences();
  useEffect(() => {
    let prefixAt = 0;
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (event.key === "?") {
        onHelp();
        return;
      }
      if (shortcuts === "off") return;
      const isSecond = Date.now() - prefixAt < WAIT;
      prefixAt = event.key === "g" ? Date.now() : 0;
      if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLInputElement>("main input[type=search]")?.focus();
      }
      const page = isSecond ? PAGES.find((each) => each.key === event.key) : undefined;
      if (page) navigate(page.path);
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [shortcuts, onHelp]);
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.closest("input, textarea, select, dialog") !== null;
}

export function ShortcutList({ onClose }: { onClose: () => void }) {
  const { shortcuts } = usePreferences();
  const list: [string[], string][] = [
    ...PAGES.map((page): [string[], string] => [["g", page.key], [page.title, page.rest].filter(Boolean).join(" ")]),
    [["/"], "Search on the page"],
    [["?"], "This list"],
    [["Esc"], "Close a dialog or a menu"],
  ];
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <div className="dialog-body">
        <dl className="shortcuts">
          {list.map(([keys, what]) => (
            <div key={what}>
              <dt>{what}</dt>
              <dd>
                {keys.map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </dd>
            </div>
          ))}
        </dl>
        <label className="flag">
          <input
            type="checkbox"
            checked={shortcuts === "on"}
            onChange={(event) => setPreference("shortcuts", event.target.checked ? "on" : "off")}
          />
          <span>
            Use single-key shortcuts
            <span className="small secondary">Turn them off if you dictate text.</span>
          </span>
        </label>
      </div>
    </Dialog>
  );
}
