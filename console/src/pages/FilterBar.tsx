import { ListFilter, Search, X } from "lucide-react";
import { type FormEvent, useEffect, useId, useRef, useState } from "react";
import { Menu } from "../elements/Menu";
import type { Changes } from "../navigation/location";
import { clockText } from "../values/times";
import { type Filter, formTime, timeOfForm } from "./executionFilters";
import "./filter-bar.css";

interface Props {
  filters: readonly Filter[];
  parameters: URLSearchParams;
  change: (changes: Changes) => void;
  /** The placeholder of the search field. Without one there is no search. */
  search?: string;
  children?: React.ReactNode;
}

const TYPING_PAUSE = 250;

/** Search, filters as chips that can be removed, and a menu that adds filters. The URL holds all of them. */
export function FilterBar({ filters, parameters, change, search, children }: Props) {
  const active = filters.filter(({ name }) => parameters.get(name));
  return (
    <div className="filter-bar">
      {search && <SearchField placeholder={search} value={parameters.get("q") ?? ""} change={change} />}
      <Menu
        label={
          <>
            <ListFilter size={14} aria-hidden="true" />
            Filter
          </>
        }
      >
        {(close) => <FilterForm filters={filters} parameters={parameters} change={change} onDone={close} />}
      </Menu>
      {active.map((filter) => (
        <span className="chip" key={filter.name}>
          <span>{chipText(filter, parameters.get(filter.name) ?? "")}</span>
          <button
            type="button"
            aria-label={`Remove the filter ${filter.label}`}
            onClick={() => change({ [filter.name]: null })}
          >
            <X size={14} aria-hidden="true" />
          </button>
        </span>
      ))}
      <div className="end row">{children}</div>
    </div>
  );
}

function chipText({ label, kind }: Filter, value: string): React.ReactNode {
  if (kind === "flag") return label;
  const text = kind === "time" ? clockText(value) : kind === "choice" ? value.replaceAll("_", " ") : value;
  return (
    <>
      {label}: <strong>{text}</strong>
    </>
  );
}

function SearchField({ placeholder, value, change }: { placeholder: string; value: string; change: Props["change"] }) {
  const [text, setText] = useState(value);
  const applied = useRef(value);
  useEffect(() => {
    if (value !== applied.current) setText(value); // cleared elsewhere
    applied.current = value;
  }, [value]);
  useEffect(() => {
    if (text === applied.current) return;
    const timer = setTimeout(() => {
      applied.current = text;
      change({ q: text });
    }, TYPING_PAUSE);
    return () => clearTimeout(timer);
  }, [text, change]);
  return (
    <div className="with-icon search">
      <Search size={16} aria-hidden="true" />
      <input
        className="input"
        type="search"
        placeholder={placeholder}
        aria-label="Search"
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
    </div>
  );
}

function FilterForm({ filters, parameters, change, onDone }: Omit<Props, "search"> & { onDone: () => void }) {
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget);
    const entries = filters.map((filter): [string, string] => {
      const value = String(data.get(filter.name) ?? "").trim();
      return [filter.name, filter.kind === "time" ? timeOfForm(value) : value];
    });
    change(Object.fromEntries(entries));
    onDone();
  };
  return (
    <form className="filter-form" onSubmit={submit}>
      {filters.map((filter) => (
        <FilterField key={filter.name} filter={filter} value={parameters.get(filter.name) ?? ""} />
      ))}
      <button type="submit" className="button primary">
        Apply
      </button>
    </form>
  );
}

function FilterField({ filter, value }: { filter: Filter; value: string }) {
  const { name, label, kind, options = [], placeholder } = filter;
  const id = useId();
  if (kind === "flag") {
    return (
      <label className="flag">
        <input type="checkbox" name={name} value="true" defaultChecked={value !== ""} />
        <span>{label}</span>
      </label>
    );
  }
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {kind === "choice" ? (
        <select id={id} className="input" name={name} defaultValue={value}>
          <option value="">Any</option>
          {options.map((option) => (
            <option key={option} value={option}>
              {option.replaceAll("_", " ")}
            </option>
          ))}
        </select>
      ) : (
        <input
          id={id}
          className="input"
          name={name}
          type={kind === "time" ? "datetime-local" : kind === "number" ? "number" : "text"}
          min={kind === "number" ? 1 : undefined}
          defaultValue={kind === "time" ? formTime(value) : value}
          placeholder={placeholder}
        />
      )}
    </div>
  );
}
