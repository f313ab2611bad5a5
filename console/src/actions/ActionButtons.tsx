import { useActionDialog } from "./ActionHost";
import type { Action } from "./action";

interface Props {
  actions: readonly Action[];
  /** The first action is what the reader most likely wants. */
  hasPrimary?: boolean;
}

/** Buttons that open the dialogs of actions. */
export function ActionButtons({ actions, hasPrimary = false }: Props) {
  const open = useActionDialog();
  return actions.map((action, index) => (
    <button
      key={action.id}
      type="button"
      className={`button ${hasPrimary && index === 0 ? "primary" : action.isDangerous ? "danger" : ""}`}
      onClick={() => open(action)}
    >
      <action.icon size={14} aria-hidden="true" />
      {action.verb}
    </button>
  ));
}
