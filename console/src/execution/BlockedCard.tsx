import { Clock, OctagonAlert, Pause, UserRoundCheck } from "lucide-react";
import { ActionButtons } from "../actions/ActionButtons";
import type { Action } from "../actions/action";
import type { Blocked, ReviewRow } from "../api/documents";
import { toneOfReason } from "../elements/status";
import { Time } from "../elements/time";
import { explain } from "./blockedReasons";

const ICONS = { person: UserRoundCheck, inactive: Pause, failed: OctagonAlert } as const;

interface Props {
  blocked: Blocked;
  review: ReviewRow | undefined;
  actions: readonly Action[];
}

/** Why the execution does not proceed, since when, who or what can change that, and the action that does. */
export function BlockedCard({ blocked, review, actions }: Props) {
  const tone = toneOfReason(blocked.reason);
  const Icon = (ICONS as Record<string, typeof Clock>)[tone] ?? Clock;
  const { title, help } = explain(blocked);
  return (
    <section className={`card blocked tone-${tone}`} aria-label="Why it is blocked">
      <Icon size={20} aria-hidden="true" />
      <div>
        <h2>{title}</h2>
        <p>
          {help}
          {review?.permission && (
            <>
              {" "}
              It needs the permission <code>{review.permission}</code>.
            </>
          )}
        </p>
        {review?.requests.map((request) => (
          <p key={request.at}>
            <strong>{request.actor}</strong> requested it <Time at={request.at} />: {request.reason}. A second person
            must confirm.
          </p>
        ))}
        <p className="secondary small">
          Since <Time at={blocked.since} />
          {blocked.next_check && (
            <>
              {" · "}
              {tone === "person" ? "due" : "continues"} <Time at={blocked.next_check} />
            </>
          )}
        </p>
      </div>
      {actions.length > 0 && (
        <div className="blocked-actions">
          <ActionButtons actions={actions} hasPrimary />
        </div>
      )}
    </section>
  );
}
