import { createContext, type ReactNode, useContext, useState } from "react";
import { ActionDialog } from "./ActionDialog";
import type { Action } from "./action";

const OpenContext = createContext<(action: Action) => void>(() => undefined);

/** Shows the dialog of an action. It stays open if the page changes beneath it, for example because another person
 * acted first. */
export function ActionHost({ children }: { children: ReactNode }) {
  const [open, setOpen] = useState<Action | null>(null);
  return (
    <OpenContext value={setOpen}>
      {children}
      {open && <ActionDialog action={open} onClose={() => setOpen(null)} />}
    </OpenContext>
  );
}

/** A function that opens the dialog of an action. */
export function useActionDialog(): (action: Action) => void {
  return useContext(OpenContext);
}
