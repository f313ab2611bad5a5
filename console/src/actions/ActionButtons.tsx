import { Ellipsis } from "lucide-react";
import { useState } from "react";
import { Menu } from "../elements/Menu";
import { ActionDialog } from "./ActionDialog";
import type { Action } from "./action";

interface Props {
  actions: readonly Action[];
  /** The first action is what the reader most likely wants. */
  hasPrimary?: boolean;
  size?: "small" | "";
}

/** Buttons that open the dialogs of actions. */
export function ActionButtons({ actions, hasPrimary = false, size = "" }: Props) {
  const [open, setOpen] = useState<Action | null>(null);
  return (
    <>
      {actions.map((action, index) => (
        <button
          key={action.id}
          type="button"
          className={`button ${size} ${hasPrimary && index === 0 ? "primary" : action.isDangerous ? "danger" : ""}`}
          onClick={() => setOpen(action)}
        >
          <action.icon size={14} aria-hidden="true" />
          {action.verb}
        </button>
      ))}
      {open && <ActionDialog action={open} onClose={() => setOpen(null)} />}
    </>
  );
}

/** Actions behind one button. */
export function ActionMenu({ actions, name }: { actions: readonly Action[]; name: string }) {
  const [open, setOpen] = useState<Action | null>(null);
  if (!actions.length) return null;
  return (
    <>
      <Menu label={<Ellipsis size={16} aria-hidden="true" />} name={name} className="button quiet icon small">
        {(close) => (
          <ul className="menu-list">
            {actions.map((action) => (
              <li key={action.id}>
                <button
                  type="button"
                  onClick={() => {
                    setOpen(action);
                    close();
                  }}
                >
                  <action.icon size={14} aria-hidden="true" />
                  {action.verb}
                </button>
              </li>
            ))}
          </ul>
        )}
      </Menu>
      {open && <ActionDialog action={open} onClose={() => setOpen(null)} />}
    </>
  );
}
