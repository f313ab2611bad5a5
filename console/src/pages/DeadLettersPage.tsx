import { ArrowLeft, ChevronRight, MailX } from "lucide-react";
import { ActionButtons } from "../actions/ActionButtons";
import { discard, reprocess } from "../actions/reviewActions";
import type { DeadLetterRow } from "../api/documents";
import { useDeadLetter, useDeadLetters } from "../api/queries";
import { Empty, Failure, Loading, NoMatch } from "../elements/states";
import { Status } from "../elements/status";
import { Time } from "../elements/time";
import { Fact, Traceback } from "../execution/Attempts";
import { Link, useParameters } from "../navigation/location";
import { usePermissions } from "../session/session";
import { ERROR_CLASSES, type Filter } from "./executionFilters";
import { FilterBar } from "./FilterBar";
import "./reviews.css";

const FILTERS: readonly Filter[] = [
  { name: "definition", label: "Definition", kind: "text", placeholder: "order.fulfil" },
  { name: "error_class", label: "Error class", kind: "choice", options: ERROR_CLASSES },
];

/** Steps that failed for good, oldest first. */
export function DeadLettersPage() {
  const [parameters, change] = useParameters();
  const filters = Object.fromEntries(FILTERS.map(({ name }) => [name, parameters.get(name) ?? ""]));
  const letters = useDeadLetters(filters);
  const rows = letters.data?.pages.flatMap((page) => page.items) ?? [];
  const selected = parameters.get("letter") ?? "";
  return (
    <div className="stack">
      <div className="page-head">
        <h1>Dead letters</h1>
      </div>
      <FilterBar filters={FILTERS} parameters={parameters} change={change} />
      <div className="reviews" data-selected={selected !== ""}>
        <div className="card review-list">
          {letters.isPending ? (
            <Loading what="dead letters" />
          ) : letters.error && !rows.length ? (
            <Failure error={letters.error} onRetry={() => void letters.refetch()} />
          ) : rows.length ? (
            <List rows={rows} selected={selected} onSelect={(id) => change({ letter: id })} />
          ) : Object.values(filters).some(Boolean) ? (
            <NoMatch what="dead letters" onClear={() => change({ definition: null, error_class: null })} />
          ) : (
            <Empty
              icon={MailX}
              title="No dead letters"
              command="tenuto dlq ls"
              link={{ to: "/executions?status=failed", text: "Failed executions" }}
            >
              Steps that fail permanently appear here.
            </Empty>
          )}
          {letters.hasNextPage && (
            <div className="more">
              <button type="button" className="button" onClick={() => void letters.fetchNextPage()}>
                {letters.isFetchingNextPage ? "Loading…" : "Show more"}
              </button>
            </div>
          )}
        </div>
        {selected && <Detail key={selected} id={selected} onBack={() => change({ letter: null })} />}
      </div>
    </div>
  );
}

interface ListProps {
  rows: readonly DeadLetterRow[];
  selected: string;
  onSelect: (id: string) => void;
}

function List({ rows, selected, onSelect }: ListProps) {
  return (
    <ul aria-label="Dead letters">
      {rows.map((row) => (
        <li key={row.id}>
          <button type="button" aria-current={row.id === selected} onClick={() => onSelect(row.id)}>
            <strong>{row.step_id}</strong>
            <span className="small secondary">
              <Time at={row.created_at} />
            </span>
            <span className="letter-error">{row.error_summary}</span>
            <ChevronRight size={16} aria-hidden="true" />
          </button>
        </li>
      ))}
    </ul>
  );
}

function Detail({ id, onBack }: { id: string; onBack: () => void }) {
  const letter = useDeadLetter(id);
  return (
    <section className="card review-detail" aria-label="Dead letter">
      <button type="button" className="button quiet small back" onClick={onBack}>
        <ArrowLeft size={14} aria-hidden="true" />
        All dead letters
      </button>
      {letter.data ? (
        <LetterContents letter={letter.data} />
      ) : letter.error ? (
        <Failure error={letter.error} onRetry={() => void letter.refetch()} />
      ) : (
        <Loading what="the dead letter" />
      )}
    </section>
  );
}

function LetterContents({ letter }: { letter: DeadLetterRow }) {
  const may = usePermissions();
  return (
    <div className="stack">
      <div className="page-head">
        <h2>{letter.step_id}</h2>
        {letter.state === "resolved" && <Status status="succeeded" word="resolved" />}
      </div>
      <p className="wrap error-summary">{letter.error_summary}</p>
      <dl className="facts">
        <Fact name="Execution">
          <Link className="mono" to={`/executions/${encodeURIComponent(letter.execution_id)}`}>
            {letter.execution_id}
          </Link>
        </Fact>
        <Fact name="Error class">{letter.error_class}</Fact>
        <Fact name="Attempts">{letter.attempts}</Fact>
        <Fact name="Failed">
          <Time at={letter.created_at} />
        </Fact>
      </dl>
      {letter.requests.map((request) => (
        <p key={request.at}>
          <strong>{request.actor}</strong> requested it <Time at={request.at} />: {request.reason}. A second person must
          confirm.
        </p>
      ))}
      {letter.state === "open" && may("dlq:write") && (
        <div className="decisions">
          <ActionButtons actions={[reprocess(letter), discard(letter)]} hasPrimary />
        </div>
      )}
      {letter.error_trace && <Traceback text={letter.error_trace} />}
    </div>
  );
}
