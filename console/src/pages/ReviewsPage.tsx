import { ArrowLeft, ChevronRight, UserRoundCheck } from "lucide-react";
import { useMemo } from "react";
import { ActionButtons } from "../actions/ActionButtons";
import { approve, reject } from "../actions/executionActions";
import { openedSeq, resolutionsOf } from "../actions/reviewActions";
import { useAttempts } from "../api/attempts";
import type { AttemptRow, ReviewRow } from "../api/documents";
import { REVIEW_KINDS, useExecution, useGraph, useReview, useReviews } from "../api/queries";
import { JsonValue } from "../elements/JsonTree";
import { Empty, Failure, Loading, NoMatch } from "../elements/states";
import { Status } from "../elements/status";
import { Time } from "../elements/time";
import { Fact } from "../execution/Attempts";
import { resultsOf } from "../execution/Values";
import { Link, useParameters } from "../navigation/location";
import { usePermissions, useSignedIn } from "../session/session";
import type { Filter } from "./executionFilters";
import { FilterBar } from "./FilterBar";
import "./reviews.css";

const FILTERS: readonly Filter[] = [
  { name: "kind", label: "Kind", kind: "choice", options: REVIEW_KINDS },
  { name: "definition", label: "Definition", kind: "text", placeholder: "order.fulfil" },
];

const TITLES: Record<ReviewRow["kind"], string> = {
  approval: "Approval",
  compensation: "Compensation",
  compensation_failed: "Compensation failed",
  indeterminate: "Unknown outcome",
  escalation: "Escalation",
  dead_letter: "Dead letter",
};

/** What waits for a person, earliest due first. */
export function ReviewsPage() {
  const [parameters, change] = useParameters();
  const kind = parameters.get("kind");
  const definition = parameters.get("definition") ?? "";
  const kinds = useMemo(() => REVIEW_KINDS.filter((each) => !kind || each === kind), [kind]);
  const reviews = useReviews(kinds, definition);
  const rows = useMemo(() => [...reviews.rows].sort(byDue), [reviews.rows]);
  const selected = parameters.get("review") ?? "";
  return (
    <div className="stack">
      <div className="page-head">
        <h1>Approvals and reviews</h1>
      </div>
      <FilterBar filters={FILTERS} parameters={parameters} change={change} />
      <div className="reviews" data-selected={selected !== ""}>
        <div className="card review-list">
          {reviews.isPending ? (
            <Loading what="reviews" />
          ) : reviews.error && !rows.length ? (
            <Failure error={reviews.error} onRetry={() => void reviews.refetch()} />
          ) : rows.length ? (
            <List
              rows={rows}
              selected={selected}
              onSelect={(id) => change({ review: id })}
              hasMore={Boolean(reviews.hasMore)}
            />
          ) : kind || definition ? (
            <NoMatch what="reviews" onClear={() => change({ kind: null, definition: null })} />
          ) : (
            <Empty icon={UserRoundCheck} title="Nothing waits for you" command="tenuto reviews ls">
              Approvals, failed compensations and steps with an unknown outcome appear here.
            </Empty>
          )}
        </div>
        {selected && <Detail key={selected} id={selected} onBack={() => change({ review: null })} />}
      </div>
    </div>
  );
}

/** Those with a due time first, then the longest open ones. */
export function byDue(one: ReviewRow, other: ReviewRow): number {
  if (one.due_at !== null && other.due_at !== null) return one.due_at < other.due_at ? -1 : 1;
  if (one.due_at !== other.due_at) return one.due_at === null ? 1 : -1;
  return one.opened_at < other.opened_at ? -1 : 1;
}

interface ListProps {
  rows: readonly ReviewRow[];
  selected: string;
  hasMore: boolean;
  onSelect: (id: string) => void;
}

function List({ rows, selected, hasMore, onSelect }: ListProps) {
  return (
    <ul aria-label="Reviews">
      {rows.map((row) => (
        <li key={row.id}>
          <button type="button" aria-current={row.id === selected} onClick={() => onSelect(row.id)}>
            <strong>{row.step_id}</strong>
            <span className="secondary">{TITLES[row.kind]}</span>
            <span className="small secondary">
              {row.due_at ? (
                <>
                  due <Time at={row.due_at} />
                </>
              ) : (
                <>
                  open since <Time at={row.opened_at} />
                </>
              )}
            </span>
            <span className="mono secondary">{row.execution_id}</span>
            <ChevronRight size={16} aria-hidden="true" />
          </button>
        </li>
      ))}
      {hasMore && (
        <li className="card-note small secondary">There are more. Filter by kind or definition to see them.</li>
      )}
    </ul>
  );
}

function Detail({ id, onBack }: { id: string; onBack: () => void }) {
  const review = useReview(id);
  return (
    <section className="card review-detail" aria-label="Review">
      <button type="button" className="button quiet small back" onClick={onBack}>
        <ArrowLeft size={14} aria-hidden="true" />
        All reviews
      </button>
      {review.data ? (
        <ReviewContents review={review.data} />
      ) : review.error ? (
        <Failure error={review.error} onRetry={() => void review.refetch()} />
      ) : (
        <Loading what="the review" />
      )}
    </section>
  );
}

function ReviewContents({ review }: { review: ReviewRow }) {
  const execution = useExecution(review.execution_id);
  const actions = useDecisions(
    review,
    execution.data?.blocked?.review_id === review.id ? execution.data.blocked.commands : [],
  );
  return (
    <div className="stack">
      <div className="page-head">
        <h2>
          {TITLES[review.kind]}: {review.step_id}
        </h2>
        {review.state === "resolved" && <Status status="succeeded" word="resolved" />}
      </div>
      <dl className="facts">
        <Fact name="Execution">
          <Link className="mono" to={`/executions/${encodeURIComponent(review.execution_id)}`}>
            {review.execution_id}
          </Link>
        </Fact>
        <Fact name="Definition">
          {execution.data ? `${execution.data.definition_id} v${execution.data.definition_version}` : "…"}
        </Fact>
        {execution.data?.target_object_id && (
          <Fact name={execution.data.target_object_type ?? "Target"}>{execution.data.target_object_id}</Fact>
        )}
        <Fact name="Open since">
          <Time at={review.opened_at} />
        </Fact>
        <Fact name="Due">
          <Time at={review.due_at} />
        </Fact>
        {review.kind !== "approval" && <Fact name="Reason">{review.reason}</Fact>}
        {review.permission && <Fact name="Permission">{review.permission}</Fact>}
      </dl>
      {review.requests.map((request) => (
        <p key={request.at}>
          <strong>{request.actor}</strong> requested it <Time at={request.at} />: {request.reason}. A second person must
          confirm.
        </p>
      ))}
      {actions.length > 0 ? (
        <div className="decisions">
          <ActionButtons actions={actions} hasPrimary />
        </div>
      ) : (
        review.state === "open" && <p className="secondary">Your roles do not allow this decision.</p>
      )}
      <Data review={review} input={execution.data?.input} />
    </div>
  );
}

function useDecisions(review: ReviewRow, commands: readonly string[]) {
  const may = usePermissions();
  const { roles } = useSignedIn();
  const holds = !review.permission || may(review.permission) || roles.includes("admin");
  if (review.state !== "open" || !may("approvals:write") || !holds) return [];
  if (review.kind !== "approval") return resolutionsOf(review, commands, may("effects:again"));
  const subject = { id: review.execution_id, seq: openedSeq(review.id), steps: [] };
  return [approve(subject, review.step_id), reject(subject, review.step_id)];
}

/** What the decision is about: the input, and the results of the steps before it. */
function Data({ review, input }: { review: ReviewRow; input: unknown }) {
  const graph = useGraph(review.execution_id);
  const attempts = useAttempts(review.execution_id);
  const rows = attempts.data?.pages.flatMap((page) => page.items) ?? [];
  const before = new Set(
    graph.data?.edges.filter(({ to, kind }) => to === review.path && kind !== "compensation").map(({ from }) => from),
  );
  const results = resultsOf(rows);
  const relevant = results.filter((row) => before.has(row.path));
  const own = rows.filter((row) => row.path === review.path && row.error_summary).at(-1);
  return (
    <>
      {own && <OwnError row={own} />}
      <JsonValue value={input} name="Input" />
      {(relevant.length ? relevant : results.slice(-3)).map((row) => (
        <JsonValue key={row.path} value={row.result} name={`Result of ${row.step_id}`} />
      ))}
    </>
  );
}

function OwnError({ row }: { row: AttemptRow }) {
  return (
    <p className="wrap">
      <strong>
        Attempt {row.attempt_number} ({row.kind}):
      </strong>{" "}
      <code>{row.error_code}</code> {row.error_summary}
    </p>
  );
}
