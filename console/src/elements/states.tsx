import { type LucideIcon, RefreshCw, SearchX, ShieldAlert, TriangleAlert, Unplug } from "lucide-react";
import { type ReactNode, useEffect, useState } from "react";
import { ConnectionLost, Problem } from "../api/problem";
import { Link } from "../navigation/location";
import { CopyButton } from "./CopyButton";
import "./states.css";

interface EmptyProps {
  icon: LucideIcon;
  title: string;
  children: ReactNode;
  command?: string;
  link?: { to: string; text: string };
  action?: ReactNode;
  /** It stands for the whole page, so its title is that of the page. */
  isPage?: boolean;
}

/** A page or card without contents: a title, one sentence, one command to copy, one link. */
export function Empty({ icon: Icon, title, children, command, link, action, isPage = false }: EmptyProps) {
  const Title = isPage ? "h1" : "h2";
  return (
    <div className="state">
      <Icon size={24} aria-hidden="true" />
      <Title>{title}</Title>
      <p>{children}</p>
      {command && <Command text={command} />}
      {action}
      {link && <Link to={link.to}>{link.text}</Link>}
    </div>
  );
}

/** A command with a button that copies it. */
export function Command({ text }: { text: string }) {
  return (
    <div className="command">
      <code>{text}</code>
      <CopyButton text={text} name="the command" />
    </div>
  );
}

export function NoMatch({ what, onClear }: { what: string; onClear: () => void }) {
  const clear = (
    <button type="button" className="button" onClick={onClear}>
      Clear filters
    </button>
  );
  return (
    <Empty icon={SearchX} title={`No ${what} match`} action={clear}>
      Remove a filter or change the search text.
    </Empty>
  );
}

interface FailureProps {
  error: Error;
  onRetry?: () => void;
  isPage?: boolean;
}

/** Why something cannot be shown, and what to do about it. */
export function Failure({ error, onRetry, isPage = false }: FailureProps) {
  const { icon, title, text } = explained(error);
  const id = error instanceof Problem ? error.document.request_id : undefined;
  const retry = onRetry && (
    <button type="button" className="button" onClick={onRetry}>
      <RefreshCw size={14} aria-hidden="true" />
      Try again
    </button>
  );
  return (
    <Empty icon={icon} title={title} action={retry} isPage={isPage}>
      {text}
      {id && (
        <span className="request-id">
          Request <code>{id}</code>
        </span>
      )}
    </Empty>
  );
}

function explained(error: Error): { icon: LucideIcon; title: string; text: string } {
  if (error instanceof ConnectionLost) {
    const text = "The console tries again as soon as the service can be reached.";
    return { icon: Unplug, title: "No connection to the service", text };
  }
  if (error instanceof Problem && error.status === 403) {
    return { icon: ShieldAlert, title: "You may not see this", text: detailOf(error) };
  }
  if (error instanceof Problem && error.status === 404) {
    return { icon: SearchX, title: "Not found", text: `${detailOf(error)} It may be in another tenant.` };
  }
  return {
    icon: TriangleAlert,
    title: "Something went wrong",
    text: error instanceof Problem ? detailOf(error) : error.message,
  };
}

export function detailOf(error: Problem): string {
  const places = error.document.errors?.map((each) => `${each.pointer}: ${each.message}.`) ?? [];
  return [error.message, ...places].join(" ");
}

/** Placeholder rows. They appear after 300 ms, in the space that they take from the beginning. */
export function Loading({ rows = 8, what }: { rows?: number; what: string }) {
  const [isLate, setIsLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setIsLate(true), 300);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div className="loading" data-late={isLate} aria-busy="true">
      <span className="hidden-text">Loading {what}</span>
      {Array.from({ length: rows }, (_, row) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: placeholders have no identity
        <div key={row} />
      ))}
    </div>
  );
}
