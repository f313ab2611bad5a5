import { Keyboard, LogOut, Menu as MenuIcon, Monitor, Moon, Sun } from "lucide-react";
import { useEffect, useState } from "react";
import { type Preferences, setPreference, usePreferences } from "../preferences/preferences";
import { usePermissions, useSignedIn } from "../session/session";
import { Link, usePlace } from "./location";
import { Mark } from "./Mark";
import { PAGES } from "./pages";
import "./sidebar.css";

interface Props {
  counts: Record<string, number | undefined>;
  onShortcuts: () => void;
  onSignOut: () => void;
}

export function Sidebar({ counts, onShortcuts, onSignOut }: Props) {
  const { path } = usePlace();
  const may = usePermissions();
  const [isOpen, setIsOpen] = useState(false);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another page closes the menu
  useEffect(() => setIsOpen(false), [path]);
  return (
    <header className="sidebar" data-open={isOpen}>
      <div className="sidebar-head">
        <Link to="/" aria-label="Tenuto: overview">
          <Mark />
        </Link>
        <button
          type="button"
          className="button quiet icon menu-button"
          aria-label="Menu"
          aria-expanded={isOpen}
          onClick={() => setIsOpen(!isOpen)}
        >
          <MenuIcon size={18} aria-hidden="true" />
        </button>
      </div>
      <nav aria-label="Pages">
        <ul>
          {PAGES.filter((page) => may(page.permission)).map((page) => (
            <li key={page.path}>
              <Link to={page.path} aria-current={isCurrent(page.path, path) ? "page" : undefined}>
                <page.icon size={16} aria-hidden="true" />
                <span>
                  {page.title}
                  {page.rest && <span className="hidden-text"> {page.rest}</span>}
                </span>
                <Count count={counts[page.path] ?? 0} />
              </Link>
            </li>
          ))}
        </ul>
      </nav>
      <Account onShortcuts={onShortcuts} onSignOut={onSignOut} />
    </header>
  );
}

function isCurrent(page: string, path: string): boolean {
  return page === "/" ? path === "/" : path === page || path.startsWith(`${page}/`);
}

function Count({ count }: { count: number }) {
  if (count === 0) return null;
  return (
    <span className="count">
      {countText(count)}
      <span className="hidden-text"> open</span>
    </span>
  );
}

function countText(count: number): string {
  return count > 999 ? "999+" : String(count);
}

function Account({ onShortcuts, onSignOut }: Omit<Props, "counts">) {
  const { actor, tenant, roles } = useSignedIn();
  return (
    <div className="account">
      <Theme />
      <Times />
      <div className="account-name">
        <strong title={actor ?? ""}>{shortActor(actor)}</strong>
        <span className="small secondary">
          {tenant} · {roles.join(", ")}
        </span>
      </div>
      <div className="row">
        <button type="button" className="button quiet small" onClick={onSignOut}>
          <LogOut size={14} aria-hidden="true" />
          Sign out
        </button>
        <button type="button" className="button quiet icon small" onClick={onShortcuts} aria-label="Keyboard shortcuts">
          <Keyboard size={16} aria-hidden="true" />
        </button>
      </div>
    </div>
  );
}

/** `key:shop:4Kd9…` is shown as the name of the key. */
export function shortActor(actor: string | null): string {
  if (!actor) return "–";
  const [kind, name] = actor.split(":");
  return kind === "key" || kind === "user" ? name || actor : actor;
}

const THEMES = [
  { value: "light", name: "Light", icon: Sun },
  { value: "dark", name: "Dark", icon: Moon },
  { value: "system", name: "Like the system", icon: Monitor },
] as const;

function Theme() {
  const { theme } = usePreferences();
  return (
    <fieldset className="segments">
      <legend className="hidden-text">Theme</legend>
      {THEMES.map(({ value, name, icon: Icon }) => (
        <button
          key={value}
          type="button"
          aria-pressed={theme === value}
          aria-label={name}
          title={name}
          onClick={() => setPreference("theme", value)}
        >
          <Icon size={14} aria-hidden="true" />
        </button>
      ))}
    </fieldset>
  );
}

const TIMES: readonly [Preferences["times"], string][] = [
  ["relative", "5m ago"],
  ["local", "Local"],
  ["utc", "UTC"],
];

function Times() {
  const { times } = usePreferences();
  return (
    <fieldset className="segments">
      <legend className="hidden-text">Times</legend>
      {TIMES.map(([value, name]) => (
        <button key={value} type="button" aria-pressed={times === value} onClick={() => setPreference("times", value)}>
          {name}
        </button>
      ))}
    </fieldset>
  );
}
