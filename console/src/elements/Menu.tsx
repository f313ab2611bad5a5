import { type ReactNode, useEffect, useRef, useState } from "react";

interface MenuProps {
  label: ReactNode;
  name?: string;
  className?: string;
  children: (close: () => void) => ReactNode;
}

/** A button that opens a panel below it. Escape and a press outside close it. */
export function Menu({ label, name, className = "button", children }: MenuProps) {
  const [isOpen, setIsOpen] = useState(false);
  const element = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const onPress = (event: Event) => {
      if (!element.current?.contains(event.target as Node)) setIsOpen(false);
    };
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== "Escape") return;
      setIsOpen(false);
      button.current?.focus();
    };
    document.addEventListener("pointerdown", onPress);
    document.addEventListener("focusin", onPress);
    document.addEventListener("keydown", onKey);
    return () => {
      document.removeEventListener("pointerdown", onPress);
      document.removeEventListener("focusin", onPress);
      document.removeEventListener("keydown", onKey);
    };
  }, [isOpen]);
  return (
    <div className="menu" ref={element}>
      <button
        ref={button}
        type="button"
        className={className}
        aria-expanded={isOpen}
        aria-label={name}
        onClick={() => setIsOpen(!isOpen)}
      >
        {label}
      </button>
      {isOpen && <div className="popover">{children(() => setIsOpen(false))}</div>}
    </div>
  );
}
