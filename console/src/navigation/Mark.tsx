/** The name of the product with its sign. */
export function Mark() {
  return (
    <span className="mark">
      <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
        <path fill="currentColor" d="M8 1 15 8 8 15 1 8z" />
      </svg>
      Tenuto
    </span>
  );
}
