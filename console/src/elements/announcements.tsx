import { useEffect, useState } from "react";

const INTERVAL = 5_000;
let waiting = "";
let last = 0;
let isWaiting = false;
let show: (text: string) => void = () => undefined;

/** Tells users of screen readers what happened, at most once in five seconds; the latest text wins. */
export function announce(text: string): void {
  waiting = text;
  if (isWaiting) return;
  isWaiting = true;
  setTimeout(tell, Math.max(0, last + INTERVAL - Date.now()));
}

function tell(): void {
  isWaiting = false;
  last = Date.now();
  show(waiting);
}

/** The region that screen readers watch. There is one of them, always present. */
export function Announcements() {
  const [text, setText] = useState("");
  useEffect(() => {
    show = setText;
  }, []);
  return (
    <div className="hidden-text" role="status" aria-live="polite">
      {text}
    </div>
  );
}
