import { Rocket } from "lucide-react";
import type { OverviewDocument, ReviewRow } from "../api/documents";
import { openReviews, useOverview } from "../api/overview";
import { Command, Failure, Loading } from "../elements/states";
import { lookOf } from "../elements/status";
import { Time } from "../elements/time";
import { Link } from "../navigation/location";
import { usePermissions } from "../session/session";
import "./overview.css";

const STATUSES = ["running", "waiting_approval", "paused", "failed", "succeeded", "canceled"] as const;

/** How many executions there are in each status, and what needs attention. Each figure leads to its list. */
export function OverviewPage() {
  const overview = useOverview();
  return (
    <div className="stack">
      <div className="page-head">
        <h1>Overview</h1>
      </div>
      {overview.data ? (
        <Contents overview={overview.data} />
      ) : overview.error ? (
        <div className="card">
          <Failure error={overview.error} onRetry={() => void overview.refetch()} />
        </div>
      ) : (
        <Loading what="the overview" rows={6} />
      )}
    </div>
  );
}

function Contents({ overview }: { overview: OverviewDocument }) {
  const may = usePermissions();
  const total = Object.values(overview.counts).reduce((sum, count) => sum + count, 0);
  if (total === 0) return <FirstSteps />;
  const count = (value: number) => countText(value, overview.counted_to);
  return (
    <>
      <ul className="figures">
        {STATUSES.map((status) => (
          <li key={status}>
            <Figure to={`/executions?status=${status}`} status={status} value={count(overview.counts[status] ?? 0)} />
          </li>
        ))}
      </ul>
      <ul className="figures">
        {may("reviews:read") && (
          <li>
            <Figure to="/reviews" title="Approvals and reviews" value={count(openReviews(overview))} />
          </li>
        )}
        {may("dlq:read") && (
          <li>
            <Figure to="/dead-letters" title="Dead letters" value={count(overview.dlq.open)} />
          </li>
        )}
        <li>
          <Figure
            to="/executions?status=running&order=oldest"
            title="Oldest due execution"
            value={overview.oldest_due ? <Time at={overview.oldest_due} /> : "none"}
          />
        </li>
        {overview.workers !== null && (
          <li>
            <div className="card figure">
              <span>Workers</span>
              <strong>{overview.workers}</strong>
            </div>
          </li>
        )}
      </ul>
      <div className="overview-columns">
        {may("reviews:read") && <DueReviews reviews={overview.reviews.due} />}
        <Queues queues={overview.queues} />
      </div>
    </>
  );
}

function Figure({ to, title, status, value }: { to: string; title?: string; status?: string; value: React.ReactNode }) {
  const look = status ? lookOf(status) : null;
  return (
    <Link to={to} className={`card figure${look ? ` tone-${look.tone}` : ""}`}>
      <span>
        {look && <look.icon size={14} aria-hidden="true" />}
        {title ?? look?.word}
      </span>
      <strong>{value}</strong>
    </Link>
  );
}

/** `12,431`, or `10,000+` where counting stopped. */
function countText(count: number, countedTo: number): string {
  return count.toLocaleString("en") + (count >= countedTo ? "+" : "");
}

function DueReviews({ reviews }: { reviews: readonly ReviewRow[] }) {
  return (
    <section className="card" aria-label="Due soonest">
      <header>
        <h2>Due soonest</h2>
        <Link className="end" to="/reviews">
          All reviews
        </Link>
      </header>
      {reviews.length ? (
        <div className="table-scroll">
          <table>
            <tbody>
              {reviews.map((review) => (
                <tr key={review.id}>
                  <td>
                    <Link to={`/reviews?review=${encodeURIComponent(review.id)}`}>{review.step_id}</Link>
                  </td>
                  <td className="secondary">{review.kind.replaceAll("_", " ")}</td>
                  <td className="mono secondary">{review.execution_id}</td>
                  <td className="number">
                    {review.due_at ? (
                      <>
                        due <Time at={review.due_at} />
                      </>
                    ) : (
                      <>
                        open since <Time at={review.opened_at} />
                      </>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <p className="card-note secondary">Nothing waits for a person.</p>
      )}
    </section>
  );
}

function Queues({ queues }: { queues: OverviewDocument["queues"] }) {
  if (!queues.length) return null;
  return (
    <section className="card" aria-label="Queues">
      <header>
        <h2>Queues</h2>
      </header>
      <div className="table-scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">Queue</th>
              <th scope="col" className="number">
                Waiting
              </th>
              <th scope="col">Oldest</th>
              <th scope="col" className="number">
                Workers
              </th>
            </tr>
          </thead>
          <tbody>
            {queues.map((queue) => (
              <tr key={queue.name}>
                <td>{queue.name}</td>
                <td className="number">{queue.due.toLocaleString("en")}</td>
                <td>
                  <Time at={queue.oldest_due} />
                </td>
                <td className="number">{queue.workers || <span className="tone-failed queue-alert">none</span>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** A new installation: the commands that start the first execution. */
function FirstSteps() {
  return (
    <div className="card first-steps">
      <Rocket size={24} aria-hidden="true" />
      <h2>No executions yet</h2>
      <p className="secondary">Load your sagas into the service, and start one of them.</p>
      <Command text="tenuto dev --app MODULE" />
      <Command text={'tenuto run DEFINITION --input \'{"key": "value"}\''} />
      <Link to="/executions">Executions</Link>
    </div>
  );
}
