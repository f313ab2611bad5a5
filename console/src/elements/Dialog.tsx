import { X } from "lucide-react";
import { type ReactNode, useEffect, useId, useRef } from "react";
import "./dialog.css";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ReactNode;
  className?: string;
}

/** A modal dialog. The browser keeps the focus inside, and returns it when the dialog closes. */
export function Dialog({ title, onClose, children, className }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    dialog?.querySelector<HTMLElement>("form :is(input, textarea, select)")?.focus();
    return () => dialog?.close();
  }, []);
  return (
    <dialog ref={element} aria-labelledby={heading} className={className} onCancel={(event) => closeOn(event, onClose)}>
      <header className="dialog-head">
        <h2 id={heading}>{title}</h2>
        <button type="button" className="button quiet icon small" onClick={onClose} aria-label="Close">
          <X size={16} aria-hidden="true" />
        </button>
      </header>
      {children}
    </dialog>
  );
}

function closeOn(
  event: { preventDefault(): void; target: EventTarget; currentTarget: EventTarget },
  close: () => void,
): void {
  if (event.target !== event.currentTarget) return; // of a dialog inside
  event.preventDefault();
  close();
}
