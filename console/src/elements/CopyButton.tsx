import { Check, Copy } from "lucide-react";
import { useEffect, useState } from "react";
import { copyText } from "../values/clipboard";
import { announce } from "./announcements";

/** Copies a text, and says so for two seconds. */
export function CopyButton({ text, label, name }: { text: string; label?: string; name: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 2_000);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async () => {
    const done = await copyText(text);
    setCopied(done);
    announce(done ? `Copied ${name}.` : `The browser did not allow copying ${name}.`);
  };
  const Icon = copied ? Check : Copy;
  return (
    <button
      type="button"
      className={`button quiet small${label ? "" : " icon"}`}
      onClick={copy}
      title={`Copy ${name}`}
      aria-label={label ? undefined : `Copy ${name}`}
    >
      <Icon size={14} aria-hidden="true" />
      {label}
    </button>
  );
}
